"""The verifier's service, in domain dataclasses, on both ends."""

from __future__ import annotations

from collections.abc import AsyncIterable
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any, Protocol

import grpc.aio

from adasd.core.messages import ModelInfo, VerifyReply, VerifyRequest
from adasd.rpc import codec
from adasd.rpc.connection import PLAIN, Connection, Headers
from adasd.rpc.duplex import Duplex
from adasd.rpc.info import encode_info
from adasd.rpc.options import MessageLimits
from adasd.rpc.tls import ClientTls
from adasd.rpc.v1 import common_pb2, verifier_pb2, verifier_pb2_grpc

SERVICE = verifier_pb2.DESCRIPTOR.services_by_name["Verifier"].full_name

METHOD = f"{SERVICE}/Verify"

VerifierStream = Duplex[VerifyRequest, VerifyReply]


class VerifyHandler(Protocol):
    """One generation, as the server sees it."""

    async def verify(self, request: VerifyRequest) -> VerifyReply: ...


class VerifierHandler(Protocol):
    """What a verifier does. `generation` spans one stream; leaving it, for whatever reason, releases the session."""

    def info(self) -> ModelInfo: ...

    def generation(self) -> AbstractAsyncContextManager[VerifyHandler]: ...


class _Servicer(verifier_pb2_grpc.VerifierServicer):
    def __init__(self, handler: VerifierHandler) -> None:
        self._handler = handler

    async def Info(self, request: common_pb2.InfoRequest, context: object) -> common_pb2.ModelInfo:
        return encode_info(self._handler.info())

    async def Verify(
        self, messages: AsyncIterable[verifier_pb2.VerifyRequest], context: grpc.aio.ServicerContext[Any, Any]
    ) -> None:
        async with self._handler.generation() as generation:
            async for message in messages:
                reply = await generation.verify(codec.decode_verify_request(message))
                await context.write(codec.encode_verify_reply(reply))


class VerifierService:
    """A handler as a gRPC service, for `adasd.rpc.server.Server`."""

    name = SERVICE

    def __init__(self, handler: VerifierHandler) -> None:
        self._servicer = _Servicer(handler)

    def add_to(self, server: grpc.aio.Server) -> None:
        verifier_pb2_grpc.add_VerifierServicer_to_server(self._servicer, server)  # type: ignore[no-untyped-call]


class VerifierConnection(Connection):
    """A channel to a verifier."""

    def __init__(self, address: str, limits: MessageLimits, tls: ClientTls = PLAIN) -> None:
        super().__init__(address, limits, verifier_pb2_grpc.VerifierStub, tls)

    def open(self, headers: Headers | None = None) -> VerifierStream:
        """One stream, for all rounds of one generation. headers: sent with it."""
        method = partial(self._stub.Verify, metadata=headers)
        return Duplex(method, codec.encode_verify_request, codec.decode_verify_reply, self._limits)
