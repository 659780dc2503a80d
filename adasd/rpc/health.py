"""`python -m adasd.rpc.health HOST:PORT`: ends with 0 if the server there says SERVING; for a container's own check."""

from __future__ import annotations

import sys

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

SECONDS = 3.0


def state(address: str, seconds: float = SECONDS) -> str:
    """SERVING, NOT_SERVING, or why there is no answer."""
    with grpc.insecure_channel(address) as channel:
        try:
            answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=seconds)
        except grpc.RpcError as error:
            return str(error.code().name)
    return str(health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status))


if __name__ == "__main__":
    found = state(sys.argv[1])
    sys.exit(0 if found == "SERVING" else found)
