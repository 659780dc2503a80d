"""The shell of a service: binds, answers health checks from the first moment, drains on SIGTERM."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from adasd.core.errors import ServiceUnavailable
from adasd.rpc.interceptors import CallsInHand, DomainErrors
from adasd.rpc.options import MessageLimits, server_options
from adasd.rpc.tls import ServerTls

logger = logging.getLogger(__name__)

NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
SERVING = health_pb2.HealthCheckResponse.SERVING
PLAIN = ServerTls()
LAST_BYTES_SECONDS = 0.5
"""What a call that is done gets to send its status."""


class Service(Protocol):
    """A gRPC service by its full name."""

    @property
    def name(self) -> str: ...

    def add_to(self, server: grpc.aio.Server) -> None: ...


class Server:
    """Services, health and reflection. Health says NOT_SERVING until `set_serving` and from `drain` on."""

    def __init__(
        self,
        services: Sequence[Service],
        limits: MessageLimits,
        interceptors: Sequence[Any] = (),
        tls: ServerTls = PLAIN,
    ) -> None:
        """Raises InvalidRequest for TLS files that are of no use."""
        self._names = [service.name for service in services]
        self._credentials = tls.credentials()
        self._calls = CallsInHand()
        self._health = health.aio.HealthServicer()  # type: ignore[attr-defined]  # set at import
        self._server = grpc.aio.server(
            interceptors=[*interceptors, DomainErrors(self._calls)], options=server_options(limits)
        )
        for service in services:
            service.add_to(self._server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        names = (*self._names, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, self._server)

    async def start(self, host: str, port: int) -> int:
        """Bind and answer; port 0 takes a free one. Returns the port. Raises ServiceUnavailable if it is taken."""
        await self._set_health(NOT_SERVING)
        try:
            bound = self._bind(f"{host}:{port}")
        except RuntimeError as error:
            raise ServiceUnavailable(f"cannot listen on {host}:{port}: {error}") from None
        await self._server.start()
        logger.info("%s listening on %s:%d", ", ".join(self._names), host, bound)
        return bound

    def _bind(self, address: str) -> int:
        if self._credentials is None:
            return self._server.add_insecure_port(address)
        return self._server.add_secure_port(address, self._credentials)

    async def set_serving(self) -> None:
        await self._set_health(SERVING)
        logger.info("%s serving", ", ".join(self._names))

    async def drain(self, grace: float) -> None:
        """Refuse new calls, let the running ones finish for at most `grace` seconds, cut the rest, stop.

        gRPC's own grace would also wait for health watches, which never end.
        """
        await self._health.enter_graceful_shutdown()
        finished = await self._calls.finished(grace)
        await self._server.stop(LAST_BYTES_SECONDS if finished else None)

    async def _set_health(self, status: health_pb2.HealthCheckResponse.ServingStatus) -> None:
        for name in ("", *self._names):
            await self._health.set(name, status)


async def serve(server: Server, load: Callable[[], Awaitable[None]], host: str, port: int, grace: float) -> None:
    """Run until SIGTERM or SIGINT: listen, load, serve, drain. Raises what `load` raises."""
    with _termination() as terminated:
        await server.start(host, port)
        try:
            if await _loaded(load, terminated):
                await server.set_serving()
                await terminated.wait()
                logger.info("terminating; draining for at most %g s", grace)
        finally:
            await server.drain(grace)


async def _loaded(load: Callable[[], Awaitable[None]], terminated: asyncio.Event) -> bool:
    """Whether the model was loaded before the end came."""
    loading = asyncio.ensure_future(load())
    waiting = asyncio.create_task(terminated.wait())
    await asyncio.wait({loading, waiting}, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    if not loading.done():
        loading.cancel()
        return False
    loading.result()
    return True


@contextmanager
def _termination() -> Iterator[asyncio.Event]:
    """An event that SIGTERM and SIGINT set."""
    loop, terminated = asyncio.get_running_loop(), asyncio.Event()
    signals = (signal.SIGTERM, signal.SIGINT)
    for number in signals:
        loop.add_signal_handler(number, terminated.set)
    try:
        yield terminated
    finally:
        for number in signals:
            loop.remove_signal_handler(number)
