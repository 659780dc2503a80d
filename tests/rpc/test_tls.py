"""TLS between two services, with certificates made here."""

from __future__ import annotations

import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from adasd.core.errors import InvalidRequest, ServiceUnavailable
from adasd.rpc.connection import Connection
from adasd.rpc.server import Server
from adasd.rpc.tls import ClientTls, ServerTls
from adasd.rpc.verifier import VerifierConnection, VerifierService
from tests.rpc.messages import INFO
from tests.rpc.test_server import LIMITS, PATIENCE, Handler


def openssl(*arguments: str | Path) -> None:
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)


def authority(folder: Path, name: str) -> Path:
    certificate = folder / f"{name}.pem"
    new = ("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2")
    openssl(*new, "-subj", f"/CN={name}", "-keyout", folder / f"{name}.key", "-out", certificate)
    return certificate


def signed(folder: Path, name: str, authority: Path, address: str) -> tuple[Path, Path]:
    """Certificate and key for an address."""
    certificate, key, request = (folder / f"{name}.{kind}" for kind in ("pem", "key", "csr"))
    new = ("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", f"/CN={name}")
    openssl(*new, "-keyout", key, "-out", request)
    extensions = folder / f"{name}.ext"
    extensions.write_text(f"subjectAltName={address}\n")
    issuer = ("-CA", authority, "-CAkey", authority.with_suffix(".key"), "-CAcreateserial")
    openssl("x509", "-req", "-in", request, *issuer, "-days", "2", "-extfile", extensions, "-out", certificate)
    return certificate, key


class Certificates:
    def __init__(self, folder: Path) -> None:
        self.ca, self.foreign_ca = authority(folder, "ca"), authority(folder, "foreign-ca")
        self.server = signed(folder, "server", self.ca, "IP:127.0.0.1")
        self.elsewhere = signed(folder, "elsewhere", self.ca, "DNS:elsewhere.example")
        self.client = signed(folder, "client", self.ca, "DNS:gateway")
        self.foreign_client = signed(folder, "foreign-client", self.foreign_ca, "DNS:gateway")


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@asynccontextmanager
async def connected(server_tls: ServerTls, client_tls: ClientTls) -> AsyncIterator[Connection]:
    server = Server([VerifierService(Handler())], LIMITS, tls=server_tls)
    port = await server.start("127.0.0.1", 0)
    try:
        connection = VerifierConnection(f"127.0.0.1:{port}", LIMITS, client_tls)
        yield connection
        await connection.close()
    finally:
        await server.drain(0)


async def test_a_server_with_a_certificate_is_known_by_its_root(pki: Certificates) -> None:
    async with connected(ServerTls(*pki.server), ClientTls(pki.ca)) as connection:
        assert (await connection.info(PATIENCE)).model == INFO


async def test_both_ends_may_ask_for_a_certificate(pki: Certificates) -> None:
    async with connected(ServerTls(*pki.server, pki.ca), ClientTls(pki.ca, *pki.client)) as connection:
        assert (await connection.info(PATIENCE)).model == INFO


async def test_servers_may_share_a_name_that_is_not_their_address(pki: Certificates) -> None:
    named = ClientTls(pki.ca, server_name="elsewhere.example")
    async with connected(ServerTls(*pki.elsewhere), named) as connection:
        assert (await connection.info(PATIENCE)).model == INFO
    assert "Hostname" in await refusal(ServerTls(*pki.server), named)


async def refusal(server_tls: ServerTls, client_tls: ClientTls) -> str:
    async with connected(server_tls, client_tls) as connection:
        with pytest.raises(ServiceUnavailable) as refused:
            await connection.info(PATIENCE)
        return str(refused.value)


async def test_a_client_without_the_right_certificate_is_refused(pki: Certificates) -> None:
    mutual = ServerTls(*pki.server, pki.ca)
    assert "asked over TLS without a certificate of its own" in await refusal(mutual, ClientTls(pki.ca))
    assert "with a certificate" in await refusal(mutual, ClientTls(pki.ca, *pki.foreign_client))
    assert "asked in plain text" in await refusal(mutual, ClientTls())


async def test_a_server_that_is_not_who_it_should_be_is_not_spoken_to(pki: Certificates) -> None:
    assert "CERTIFICATE_VERIFY_FAILED" in await refusal(ServerTls(*pki.server), ClientTls(pki.foreign_ca))
    assert "Hostname" in await refusal(ServerTls(*pki.elsewhere), ClientTls(pki.ca))
    assert "asked over TLS" in await refusal(ServerTls(), ClientTls(pki.ca))
    assert "asked in plain text" in await refusal(ServerTls(*pki.server), ClientTls())


def test_files_that_are_of_no_use_are_named_at_the_start(pki: Certificates, tmp_path: Path) -> None:
    (empty := tmp_path / "empty.pem").touch()
    for tls in (
        ServerTls(pki.server[0], pki.client[1]),
        ServerTls(pki.server[0], tmp_path / "absent.key"),
        ServerTls(*pki.server, empty),
        ClientTls(tmp_path / "absent.pem"),
        ClientTls(pki.ca, empty, empty),
    ):
        with pytest.raises(InvalidRequest, match=r"\.(pem|key)"):
            tls.credentials()


def test_settings_that_make_no_sense_together() -> None:
    here = Path("x.pem")
    for make in (
        lambda: ServerTls(certificate=here),
        lambda: ServerTls(key=here),
        lambda: ServerTls(client_ca=here),
        lambda: ClientTls(root=here, key=here),
        lambda: ClientTls(certificate=here, key=here),
        lambda: ClientTls(server_name="x"),
    ):
        with pytest.raises(ValueError, match="certificate"):
            make()
