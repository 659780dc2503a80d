"""TLS between the services, mutual where both ends have a certificate. All files are PEM."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

import grpc

from adasd.core.errors import InvalidRequest
from adasd.rpc.options import Options


@dataclass(frozen=True, slots=True)
class ServerTls:
    """certificate (its chain included), key: of this server; without them it speaks plain text.

    client_ca: who signed the certificates of its clients; with it, a client without one is refused.
    """

    certificate: Path | None = None
    key: Path | None = None
    client_ca: Path | None = None

    def __post_init__(self) -> None:
        _require_pair(self.certificate, self.key)
        if self.client_ca is not None and self.certificate is None:
            raise ValueError("client_ca needs a certificate and a key of the server's own")

    def credentials(self) -> grpc.ServerCredentials | None:
        """None for plain text. Raises InvalidRequest naming the file at fault."""
        if self.certificate is None or self.key is None:
            return None
        pair = _pair(self.certificate, self.key)
        client_ca = None if self.client_ca is None else _certificates(self.client_ca)
        return grpc.ssl_server_credentials([pair], client_ca, require_client_auth=client_ca is not None)


@dataclass(frozen=True, slots=True)
class ClientTls:
    """root: who signed the certificates of the servers; without it this client speaks plain text.

    certificate (its chain included), key: of this client, for servers that ask. server_name: what the certificates of
    all servers name; without it each must name what its server is called by, an address if a name was resolved before.
    """

    root: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    server_name: str | None = None

    def __post_init__(self) -> None:
        _require_pair(self.certificate, self.key)
        if self.root is None and (self.certificate is not None or self.server_name is not None):
            raise ValueError("a certificate and a server_name are of use with a root only")

    @property
    def options(self) -> Options:
        """Of a channel."""
        return () if self.server_name is None else (("grpc.ssl_target_name_override", self.server_name),)

    @property
    def spoken(self) -> str:
        """How, in words."""
        if self.root is None:
            return "in plain text"
        return f"over TLS {'without' if self.certificate is None else 'with'} a certificate of its own"

    def credentials(self) -> grpc.ChannelCredentials | None:
        """None for plain text. Raises InvalidRequest naming the file at fault."""
        if self.root is None:
            return None
        root = _certificates(self.root)
        if self.certificate is None or self.key is None:
            return grpc.ssl_channel_credentials(root)
        return grpc.ssl_channel_credentials(root, *_pair(self.certificate, self.key))


def _require_pair(certificate: Path | None, key: Path | None) -> None:
    if (certificate is None) != (key is None):
        raise ValueError("certificate and key go together")


def _pair(certificate: Path, key: Path) -> tuple[bytes, bytes]:
    """Key and certificate, checked here: gRPC would say no more than that a handshake failed."""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)
        return key.read_bytes(), certificate.read_bytes()
    except OSError as error:  # of which ssl.SSLError is one
        raise InvalidRequest(f"{certificate} and {key} are no certificate and its key: {error}", "tls") from None


def _certificates(file: Path) -> bytes:
    try:
        ssl.create_default_context(cafile=file)
        return file.read_bytes()
    except OSError as error:
        raise InvalidRequest(f"{file} holds no certificates: {error}", "tls") from None
