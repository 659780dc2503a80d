"""What a replica adds to the traces of requests that gateways keep: their streams, and some of the rounds in these."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio

from adasd.core.messages import DraftReply, DraftRequest, ModelInfo, VerifyReply, VerifyRequest
from adasd.rpc.drafter import DrafterHandler, DraftHandler
from adasd.rpc.interceptors import Continuation
from adasd.rpc.verifier import VerifierHandler, VerifyHandler
from services.tracing import NO_SPAN, TRACEPARENT, TRACESTATE, Span, Tracing, figures, shown


class StreamSpans(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]  # generic in its stub only
    """A span for every stream that names one of its gateway's; other calls are no part of a request."""

    def __init__(self, tracing: Tracing) -> None:
        self._tracing = tracing

    async def intercept_service(
        self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler[Any, Any]:
        handler = await continuation(handler_call_details)
        sent = handler_call_details.invocation_metadata
        named = {name: str(value) for name, value in sent if name in (TRACEPARENT, TRACESTATE)}
        if handler is None or not handler.request_streaming or TRACEPARENT not in named:
            return handler
        method = handler_call_details.method.removeprefix("/")
        behaviour: Any = handler.stream_stream

        async def call(messages: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
            with self._tracing.span(method, "server", {"rpc.system": "grpc"}, named):
                return await behaviour(messages, context)

        return grpc.stream_stream_rpc_method_handler(call, handler.request_deserializer, handler.response_serializer)


class RoundSpans:
    """The spans of one stream's messages: as many as its gateway shows rounds, the first ones and then ever fewer."""

    def __init__(self, tracing: Tracing, name: str) -> None:
        self._tracing = tracing
        self._name = name
        self._here = 0

    def span(self, round_number: int, rounds: int = 1) -> Span:
        self._here += 1
        if not shown(round_number, self._here - 1, rounds):
            return NO_SPAN
        return self._tracing.span(self._name, attributes={"adasd.round": round_number})


class TracedDrafter:
    """`adasd.rpc.drafter.DrafterHandler` with spans."""

    def __init__(self, inner: DrafterHandler, tracing: Tracing) -> None:
        self._inner = inner
        self._tracing = tracing

    def info(self) -> ModelInfo:
        return self._inner.info()

    @asynccontextmanager
    async def generation(self) -> AsyncIterator[DraftHandler]:
        async with self._inner.generation() as generation:
            yield _TracedDrafts(generation, RoundSpans(self._tracing, "draft"))


class _TracedDrafts:
    def __init__(self, inner: DraftHandler, spans: RoundSpans) -> None:
        self._inner = inner
        self._spans = spans

    async def propose(self, request: DraftRequest) -> DraftReply:
        with self._spans.span(request.round_number) as span:
            reply = await self._inner.propose(request)
            span.note({"adasd.candidates": len(reply.draft), **figures(reply.timing)})
            return reply


class TracedVerifier:
    """`adasd.rpc.verifier.VerifierHandler` with spans."""

    def __init__(self, inner: VerifierHandler, tracing: Tracing) -> None:
        self._inner = inner
        self._tracing = tracing

    def info(self) -> ModelInfo:
        return self._inner.info()

    @asynccontextmanager
    async def generation(self) -> AsyncIterator[VerifyHandler]:
        async with self._inner.generation() as generation:
            yield _TracedVerdicts(generation, RoundSpans(self._tracing, "verify"))


class _TracedVerdicts:
    def __init__(self, inner: VerifyHandler, spans: RoundSpans) -> None:
        self._inner = inner
        self._spans = spans

    async def verify(self, request: VerifyRequest) -> VerifyReply:
        with self._spans.span(request.round_number, request.rounds) as span:
            reply = await self._inner.verify(request)
            judged = {"adasd.candidates": len(request.draft or reply.draft), "adasd.accepted": reply.verdict.accepted}
            span.note({**judged, **figures(reply.timing)})
            return reply
