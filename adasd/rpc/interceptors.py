"""What every call of ours passes on the server: errors become statuses, and the calls in hand are counted."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, NoReturn

import grpc
import grpc.aio

from adasd.core.errors import AdasdError, ServiceUnavailable
from adasd.rpc.status import INTERNAL_MESSAGE, MAX_MESSAGE_CHARACTERS, status_of, trailing_metadata

logger = logging.getLogger(__name__)

OURS = "/adasd."
"""Health and reflection speak for themselves."""

Behaviour = Callable[[Any, "grpc.aio.ServicerContext[Any, Any]"], Awaitable[Any]]
Continuation = Callable[[grpc.HandlerCallDetails], Awaitable["grpc.RpcMethodHandler[Any, Any]"]]


class CallsInHand:
    """The calls that are running, and the end of them."""

    def __init__(self) -> None:
        self._count = 0
        self._closed = False
        self._idle = asyncio.Event()
        self._idle.set()

    def __enter__(self) -> None:
        """Raises ServiceUnavailable once the end has begun."""
        if self._closed:
            raise ServiceUnavailable("the service is stopping")
        self._count += 1
        self._idle.clear()

    def __exit__(self, *_: object) -> None:
        self._count -= 1
        if self._count == 0:
            self._idle.set()

    async def finished(self, grace: float) -> bool:
        """Let no further call begin; whether all that run ended within `grace` seconds."""
        self._closed = True
        try:
            async with asyncio.timeout(grace):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True


class DomainErrors(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]  # generic in its stub only
    """Turns what a handler raises into a status, for unary calls and in mid-stream alike.

    Handlers are coroutines of (request or request iterator, context); a stream writes its replies to the context.
    """

    def __init__(self, calls: CallsInHand) -> None:
        self._calls = calls

    async def intercept_service(
        self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler[Any, Any]:
        handler = await continuation(handler_call_details)
        if handler is None or not handler_call_details.method.startswith(OURS):
            return handler
        method = handler_call_details.method
        if handler.request_streaming:
            return grpc.stream_stream_rpc_method_handler(
                self._translated(handler.stream_stream, method),
                handler.request_deserializer,
                handler.response_serializer,
            )
        return grpc.unary_unary_rpc_method_handler(
            self._translated(handler.unary_unary, method), handler.request_deserializer, handler.response_serializer
        )

    def _translated(self, behaviour: Any, method: str) -> Behaviour:
        async def call(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
            try:
                with self._calls:
                    return await behaviour(request, context)
            except AdasdError as error:
                logger.info("%s refused: %s: %s", method, type(error).__name__, error)
                await abort(context, error)
            except grpc.aio.BaseError:
                raise  # gRPC's own: the call is over, there is nobody to tell
            except Exception:
                logger.exception("%s failed", method)
                await abort(context, AdasdError(INTERNAL_MESSAGE))

        return call


async def abort(context: grpc.aio.ServicerContext[Any, Any], error: AdasdError) -> NoReturn:
    """End the call with the error's status."""
    message = str(error)[:MAX_MESSAGE_CHARACTERS]
    await context.abort(status_of(error).code, message, trailing_metadata(error))
