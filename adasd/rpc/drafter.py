"""The drafter's service, in domain dataclasses, on both ends."""

from __future__ import annotations

from collections.abc import AsyncIterable
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any, Protocol

import grpc.aio

from adasd.core.messages import DraftReply, DraftRequest, ModelInfo
from adasd.rpc import codec
from adasd.rpc.connection import PLAIN, Connection, Headers
from adasd.rpc.duplex import Duplex
from adasd.rpc.info import encode_info
from adasd.rpc.options import MessageLimits
from adasd.rpc.tls import ClientTls
from adasd.rpc.v1 import common_pb2, drafter_pb2, drafter_pb2_grpc

SERVICE = drafter_pb2.DESCRIPTOR.services_by_name["Drafter"].full_name

METHOD = f"{SERVICE}/Propose"

DrafterStream = Duplex[DraftRequest, DraftReply]


class DraftHandler(Protocol):
    """One generation, as the server sees it."""

    async def propose(self, request: DraftRequest) -> DraftReply: ...


class DrafterHandler(Protocol):
    """What a drafter does. `generation` spans one stream; leaving it, for whatever reason, releases the session."""

    def info(self) -> ModelInfo: ...

    def generation(self) -> AbstractAsyncContextManager[DraftHandler]: ...


class _Servicer(drafter_pb2_grpc.DrafterServicer):
    def __init__(self, handler: DrafterHandler) -> None:
        self._handler = handler

    async def Info(self, request: common_pb2.InfoRequest, context: object) -> common_pb2.ModelInfo:
        return encode_info(self._handler.info())

    async def Propose(
        self, messages: AsyncIterable[drafter_pb2.DraftRequest], context: grpc.aio.ServicerContext[Any, Any]
    ) -> None:
        async with self._handler.generation() as generation:
            async for message in messages:
                reply = await generation.propose(codec.decode_draft_request(message))
                await context.write(codec.encode_draft_reply(reply))


class DrafterService:
    """A handler as a gRPC service, for `adasd.rpc.server.Server`."""

    name = SERVICE

    def __init__(self, handler: DrafterHandler) -> None:
        self._servicer = _Servicer(handler)

    def add_to(self, server: grpc.aio.Server) -> None:
        drafter_pb2_grpc.add_DrafterServicer_to_server(self._servicer, server)  # type: ignore[no-untyped-call]


class DrafterConnection(Connection):
    """A channel to a drafter."""

    def __init__(self, address: str, limits: MessageLimits, tls: ClientTls = PLAIN) -> None:
        super().__init__(address, limits, drafter_pb2_grpc.DrafterStub, tls)

    def open(self, headers: Headers | None = None) -> DrafterStream:
        """One stream, for all rounds of one generation. headers: sent with it."""
        method = partial(self._stub.Propose, metadata=headers)
        return Duplex(method, codec.encode_draft_request, codec.decode_draft_reply, self._limits)
