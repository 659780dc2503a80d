"""`python -m adasd.rpc.health HOST:PORT [FOLDER]`: ends with 0 if the server there says SERVING.

For a container's check of itself. FOLDER, for a server that speaks TLS, holds `ca.crt`, `tls.crt` and `tls.key`, as
cert-manager names them; the service's own certificate will do if it is for clients too and names HOST.
"""

from __future__ import annotations

import sys
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from adasd.rpc.tls import ClientTls

SECONDS = 3.0


def tls_of(folder: Path) -> ClientTls:
    """The client's side of a folder of certificates."""
    return ClientTls(folder / "ca.crt", folder / "tls.crt", folder / "tls.key")


def state(address: str, tls: ClientTls | None = None, seconds: float = SECONDS) -> str:
    """SERVING, NOT_SERVING, or why there is no answer. Raises InvalidRequest naming a file that is no certificate."""
    with _channel(address, tls or ClientTls()) as channel:
        try:
            answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=seconds)
        except grpc.RpcError as error:
            return str(error.code().name)
    return str(health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status))


def _channel(address: str, tls: ClientTls) -> grpc.Channel:
    credentials = tls.credentials()
    return grpc.insecure_channel(address) if credentials is None else grpc.secure_channel(address, credentials)


if __name__ == "__main__":
    found = state(sys.argv[1], tls_of(Path(sys.argv[2])) if sys.argv[2:] else None)
    sys.exit(0 if found == "SERVING" else found)
