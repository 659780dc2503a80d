"""Real drafters and verifiers in this process: gRPC on a free port, a toy model on a device thread."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio
from prometheus_client import CollectorRegistry

from adasd.core.adaptive import AcceptanceState
from adasd.core.context import Context
from adasd.core.errors import AdasdError
from adasd.core.messages import ContextDelta, DraftRequest, VerifyRequest
from adasd.core.types import Draft, DraftPlan, SamplingParams
from adasd.rpc.drafter import DrafterConnection, DrafterService, DrafterStream
from adasd.rpc.options import MessageLimits
from adasd.rpc.server import Server, Service
from adasd.rpc.verifier import VerifierConnection, VerifierService, VerifierStream
from adasd.runtime.device import DeviceThread
from adasd.runtime.loading import Loaded, load_grammars, load_model
from adasd.runtime.options import Role, RuntimeOptions
from services.replica.drafting import DrafterServicer
from services.replica.hosting import ReplicaHost
from services.replica.metrics import ReplicaMetrics, ServiceName
from services.replica.traces import StreamSpans, TracedVerifier
from services.tracing import OFF, Tracing
from services.verifier.servicer import VerifierServicer

LIMITS = MessageLimits(vocabulary=2048, candidates=16)
TARGET = "toy:seed=1,vocab=64,sharpness=2,eos_bias=-inf"
BETWEEN = TARGET + ",mix=0.3,stranger=2"
SAMPLING = SamplingParams(temperature=1.0, seed=7)
PROMPT = (5, 6, 7, 8)
NOTHING = Draft()
FRESH = AcceptanceState().pack()
PATIENCE = 60.0
"""Seconds until a test that waits for something gives up."""


class CallCounter(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]
    """How many calls each method has had."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: grpc.HandlerCallDetails
    ) -> Any:
        method = handler_call_details.method.rpartition("/")[2]
        self.counts[method] = self.counts.get(method, 0) + 1
        return await continuation(handler_call_details)


@dataclass
class Running:
    """A service as a test sees it."""

    name: ServiceName
    host: ReplicaHost
    server: Server
    registry: CollectorRegistry
    calls: CallCounter
    port: int = 0

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def metric(self, name: str, **labels: str) -> float:
        return self.registry.get_sample_value(f"adasd_{self.name}_{name}", labels) or 0.0

    def sessions(self) -> int:
        """Sessions the replica still knows."""
        replica: Any = self.host._replica
        return len(replica._sessions)


@asynccontextmanager
async def running(
    name: ServiceName,
    spec: str = TARGET,
    *,
    port: int = 0,
    loader: Callable[[], Loaded] | None = None,
    support: int | None = 512,
    work_seconds: float = 60.0,
    max_streams: int = 16,
    limits: MessageLimits = LIMITS,
    tracing: Tracing = OFF,
) -> AsyncIterator[Running]:
    """A service that has loaded its model. loader: instead of `spec`."""
    role: Role = "draft" if name == "drafter" else "target"
    load = loader or (lambda: load_model(spec, role, RuntimeOptions(support=support)))
    async with DeviceThread() as device:
        service = unloaded(name, device, work_seconds, max_streams, limits, spec, tracing)
        service.port = await service.server.start("127.0.0.1", port)
        try:
            await service.host.load(load, role, limits.vocabulary)
            await service.server.set_serving()
            yield service
        finally:
            await service.server.drain(0)


def unloaded(
    name: ServiceName,
    device: DeviceThread,
    work_seconds: float,
    max_streams: int,
    limits: MessageLimits,
    spec: str = TARGET,
    tracing: Tracing = OFF,
) -> Running:
    registry = CollectorRegistry()
    grammars = load_grammars(spec, RuntimeOptions())
    host = ReplicaHost(device, ReplicaMetrics(name, registry), work_seconds, max_streams, None, grammars)
    calls = CallCounter()
    service: Service
    if name == "drafter":
        service = DrafterService(DrafterServicer(host, limits.candidates))
    else:
        verifier = VerifierServicer(host, limits.candidates)
        service = VerifierService(verifier if tracing is OFF else TracedVerifier(verifier, tracing))
    spans = [] if tracing is OFF else [StreamSpans(tracing)]
    return Running(name, host, Server([service], limits, [calls, *spans]), registry, calls)


async def until(condition: Callable[[], bool]) -> None:
    """Wait for something that another task brings about."""
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110 (there is nothing to wait on)
            await asyncio.sleep(0.005)


async def fails(call: Awaitable[Any]) -> AdasdError:
    """The error a call ends with."""
    try:
        await call
    except AdasdError as error:
        return error
    raise AssertionError("nothing was raised")


@asynccontextmanager
async def drafting(service: Running, limits: MessageLimits = LIMITS) -> AsyncIterator[DrafterStream]:
    connection = DrafterConnection(service.address, limits)
    stream = connection.open()
    try:
        yield stream
    finally:
        await stream.close()
        await connection.close()


@asynccontextmanager
async def verifying(service: Running, limits: MessageLimits = LIMITS) -> AsyncIterator[VerifierStream]:
    connection = VerifierConnection(service.address, limits)
    stream = connection.open()
    try:
        yield stream
    finally:
        await stream.close()
        await connection.close()


async def draft(service: Running, request: DraftRequest) -> Draft:
    async with drafting(service) as stream:
        stream.send(request)
        return (await stream.receive()).draft


async def verify(service: Running, request: VerifyRequest) -> tuple[int, ...]:
    async with verifying(service) as stream:
        stream.send(request)
        return (await stream.receive()).verdict.tokens


def delta(context: Context, start: int = 0, session: bytes = bytes(16)) -> ContextDelta:
    return ContextDelta(session, context.base, context.prompt_length, start, context.ids[start:], context.hash)


def draft_request(
    context: Context, candidates: int = 4, round_number: int = 0, start: int = 0, session: bytes = bytes(16)
) -> DraftRequest:
    return DraftRequest(delta(context, start, session), SAMPLING, DraftPlan(candidates), round_number)


def verify_request(
    context: Context,
    draft: Draft = NOTHING,
    round_number: int = 0,
    start: int = 0,
    session: bytes = bytes(16),
    acceptance: str = "exact",
    state: bytes = FRESH,
) -> VerifyRequest:
    return VerifyRequest(delta(context, start, session), SAMPLING, draft, acceptance, state, round_number)


def new_session() -> bytes:
    return os.urandom(16)
