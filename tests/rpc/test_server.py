"""The shell around a service: health, reflection, errors, the end."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from adasd.core.context import Context
from adasd.core.errors import AdasdError, InvalidRequest, ServiceUnavailable, SessionNotFound
from adasd.core.messages import ContextDelta, ModelInfo, VerifyReply, VerifyRequest
from adasd.core.types import Draft, SamplingParams
from adasd.core.verdicts import Verdict
from adasd.rpc.options import MessageLimits
from adasd.rpc.server import Server, serve
from adasd.rpc.verifier import SERVICE, VerifierConnection, VerifierService
from tests.rpc.messages import INFO

LIMITS = MessageLimits(100, 4)
PATIENCE = 60.0


class Handler:
    """Answers every round with one token; `failure` is raised instead, `may_answer` holds it back."""

    def __init__(self) -> None:
        self.failure: Exception | None = None
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.running = 0
        self.entered = asyncio.Event()
        self.left = asyncio.Event()

    def info(self) -> ModelInfo:
        if self.failure:
            raise self.failure
        return INFO

    @asynccontextmanager
    async def generation(self) -> AsyncIterator[Handler]:
        self.running += 1
        self.entered.set()
        try:
            yield self
        finally:
            self.running -= 1
            self.left.set()

    async def verify(self, request: VerifyRequest) -> VerifyReply:
        await self.may_answer.wait()
        if self.failure:
            raise self.failure
        return VerifyReply(request.round_number, request.context.base, Verdict((9,), 0, "bonus"))


def request(round_number: int = 0) -> VerifyRequest:
    context = Context([1, 2])
    delta = ContextDelta(bytes(16), 2, 2, 0, context.ids, context.hash)
    return VerifyRequest(delta, SamplingParams(), Draft(), "exact", b"", round_number)


@asynccontextmanager
async def started(handler: Handler) -> AsyncIterator[tuple[Server, int]]:
    """A server and its port; drained at the end if it was not before."""
    server = Server([VerifierService(handler)], LIMITS)
    port = await server.start("127.0.0.1", 0)
    try:
        yield server, port
    finally:
        await server.drain(0)


@asynccontextmanager
async def connected(port: int) -> AsyncIterator[VerifierConnection]:
    connection = VerifierConnection(f"127.0.0.1:{port}", LIMITS)
    try:
        yield connection
    finally:
        await connection.close()


async def health(port: int, service: str = "") -> str:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        reply = await stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=PATIENCE)
    return str(health_pb2.HealthCheckResponse.ServingStatus.Name(reply.status))


@pytest.mark.parametrize("service", ["", SERVICE])
async def test_health_is_not_serving_until_told_and_while_draining(service: str) -> None:
    handler = Handler()
    handler.may_answer.clear()
    async with started(handler) as (server, port), connected(port) as connection:
        assert await health(port, service) == "NOT_SERVING"
        await server.set_serving()
        assert await health(port, service) == "SERVING"
        stream = connection.open()
        stream.send(request())
        await handler.entered.wait()
        draining = asyncio.create_task(server.drain(PATIENCE))
        await asyncio.sleep(0)
        assert await health(port, service) == "NOT_SERVING"
        handler.may_answer.set()
        await stream.receive()
        await stream.close()
        await draining


async def test_running_streams_finish_and_new_ones_are_refused_while_draining() -> None:
    handler = Handler()
    async with started(handler) as (server, port), connected(port) as connection:
        stream = connection.open()
        stream.send(request())
        await stream.receive()
        draining = asyncio.create_task(server.drain(PATIENCE))
        await asyncio.sleep(0.05)
        late = connection.open()
        late.send(request())
        with pytest.raises(ServiceUnavailable, match="stopping"):
            await late.receive()
        stream.send(request(1))
        assert (await stream.receive()).round_number == 1
        await stream.close()
        await draining
        assert handler.running == 0
        with pytest.raises(ServiceUnavailable, match="the peer ended the stream"):  # in good order, not cut
            await stream.receive()


async def test_what_outlives_the_grace_is_cut() -> None:
    handler = Handler()
    handler.may_answer.clear()
    async with started(handler) as (server, port), connected(port) as connection:
        stream = connection.open()
        stream.send(request())
        await handler.entered.wait()
        await server.drain(0.05)
        with pytest.raises(ServiceUnavailable):
            await stream.receive()
        await handler.left.wait()


async def test_a_health_watch_does_not_hold_up_the_end() -> None:
    async with started(Handler()) as (server, port), grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
        await watch.read()
        async with asyncio.timeout(PATIENCE):
            await server.drain(10 * PATIENCE)


async def test_reflection_names_the_services() -> None:
    async with started(Handler()) as (_, port), grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        call = stub.ServerReflectionInfo()
        await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
        reply = await call.read()
        await call.done_writing()
    names = {service.name for service in reply.list_services_response.service}
    assert {SERVICE, "grpc.health.v1.Health"} <= names


@pytest.mark.parametrize(
    ("failure", "kind", "message"),
    [
        (InvalidRequest("no such thing", "top_p"), InvalidRequest, "no such thing"),
        (ValueError("secret"), AdasdError, "internal error"),
    ],
)
async def test_unary_calls_and_streams_fail_alike(
    failure: Exception, kind: type[AdasdError], message: str, caplog: pytest.LogCaptureFixture
) -> None:
    handler = Handler()
    async with started(handler) as (_, port), connected(port) as connection:
        stream = connection.open()
        stream.send(request())
        await stream.receive()
        handler.failure = failure
        stream.send(request(1))
        for call in (stream.receive(), connection.info(PATIENCE)):
            with pytest.raises(kind) as raised:
                await call
            assert (type(raised.value), str(raised.value)) == (kind, message)
    assert ("secret" in caplog.text) == isinstance(failure, ValueError)


async def test_a_long_message_and_one_in_another_script_get_through() -> None:
    handler = Handler()
    handler.failure = InvalidRequest("größer " * 2000)
    async with started(handler) as (_, port), connected(port) as connection:
        with pytest.raises(InvalidRequest, match="größer größer"):
            await connection.info(PATIENCE)


async def test_a_taken_port_is_an_error() -> None:
    second = Server([VerifierService(Handler())], LIMITS)
    async with started(Handler()) as (_, port):
        with pytest.raises(ServiceUnavailable, match=str(port)):
            await second.start("127.0.0.1", port)
    await second.drain(0)


async def test_health_turns_to_serving_once_the_model_is_loaded(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    loading, may_load = asyncio.Event(), asyncio.Event()

    async def load() -> None:
        loading.set()
        await may_load.wait()

    running = asyncio.create_task(serve(Server([VerifierService(Handler())], LIMITS), load, "127.0.0.1", 0, PATIENCE))
    await loading.wait()
    port = int(caplog.text.partition("listening on 127.0.0.1:")[2].split()[0])
    assert await health(port) == "NOT_SERVING"
    may_load.set()
    async with asyncio.timeout(PATIENCE):
        while await health(port) == "NOT_SERVING":  # noqa: ASYNC110 (a probe looks again and again)
            await asyncio.sleep(0.01)
    os.kill(os.getpid(), signal.SIGTERM)
    await running


async def run_until_sigterm(load: Callable[[], Awaitable[None]], when: asyncio.Event) -> None:
    server = Server([VerifierService(Handler())], LIMITS)
    running = asyncio.create_task(serve(server, load, "127.0.0.1", 0, PATIENCE))
    await when.wait()
    await asyncio.sleep(0.05)
    os.kill(os.getpid(), signal.SIGTERM)
    async with asyncio.timeout(PATIENCE):
        await running


async def test_sigterm_ends_a_service_that_serves_and_one_that_still_loads() -> None:
    loading, loaded = asyncio.Event(), asyncio.Event()

    async def quick() -> None:
        loaded.set()

    async def endless() -> None:
        loading.set()
        await asyncio.Event().wait()

    await run_until_sigterm(quick, loaded)
    await run_until_sigterm(endless, loading)


async def test_a_model_that_cannot_be_loaded_ends_the_service() -> None:
    async def load() -> None:
        raise InvalidRequest("no such model", "model")

    with pytest.raises(InvalidRequest, match="no such model"):
        await serve(Server([VerifierService(Handler())], LIMITS), load, "127.0.0.1", 0, PATIENCE)


async def test_what_ended_a_stream_is_told_even_if_a_write_fails_at_that_moment() -> None:
    handler = Handler()
    async with started(handler) as (_, port), connected(port) as connection:
        for _ in range(100):
            handler.failure = None
            stream = connection.open()
            stream.send(request())
            await stream.receive()
            handler.failure = SessionNotFound("gone")
            for number in (1, 2, 3):
                stream.send(request(number))
                await asyncio.sleep(0)
            with pytest.raises(SessionNotFound):
                await stream.receive()
