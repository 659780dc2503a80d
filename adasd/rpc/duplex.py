"""The client's end of a bidirectional stream, in domain dataclasses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import suppress
from typing import Any, Generic, TypeVar

import grpc.aio

from adasd.core.errors import AdasdError, ServiceUnavailable
from adasd.rpc.options import MessageLimits
from adasd.rpc.status import error_of, is_grpcs_own_fault

Request = TypeVar("Request")
Reply = TypeVar("Reply")

CLOSE_SECONDS = 1.0
"""How long an idle stream may take to end before it is cut."""
STATUS_SECONDS = 0.2
"""How long to wait for the peer's status once a write has failed."""


class Duplex(Generic[Request, Reply]):
    """One stream of requests and replies; the peer answers every request once, in order.

    Giving up on `receive` loses nothing: gRPC cancels a call whose pending read is cancelled, so reads are left to a
    task of the stream's own and a reply that comes late is simply there next time.
    """

    def __init__(
        self,
        method: Callable[[AsyncIterator[Any]], Any],
        encode: Callable[[Request], Any],
        decode: Callable[[Any], Reply],
        limits: MessageLimits,
    ) -> None:
        self._requests: asyncio.Queue[Any] = asyncio.Queue()
        self._replies: asyncio.Queue[Reply | AdasdError] = asyncio.Queue()
        self._encode = encode
        self._decode = decode
        self._limit = limits.message_bytes
        self._pending = 0
        self._status: grpc.aio.AioRpcError | None = None
        self._told = asyncio.Event()
        self._call = method(self._outgoing())
        self._call.add_done_callback(self._note_status)
        self._reader = asyncio.create_task(self._read())

    @property
    def pending(self) -> int:
        """Requests whose replies have not been received."""
        return self._pending

    def send(self, request: Request) -> None:
        """Queue a request; what goes wrong later is raised by `receive`. Raises AdasdError if it is too large."""
        message = self._encode(request)
        if message.ByteSize() > self._limit:
            raise AdasdError(f"a message of {message.ByteSize()} bytes, at most {self._limit} can be sent")
        self._pending += 1
        self._requests.put_nowait(message)

    async def receive(self) -> Reply:
        """The next reply. Raises the error that ended the stream, every time, once all replies are taken."""
        return self._taken(await self._replies.get())

    def settle(self) -> bool:
        """Drop the replies that have arrived; whether none is outstanding now. Raises as `receive` does."""
        while not self._replies.empty():
            self._taken(self._replies.get_nowait())
        return self._pending == 0

    def _taken(self, reply: Reply | AdasdError) -> Reply:
        if isinstance(reply, AdasdError):
            self._replies.put_nowait(reply)
            raise reply
        self._pending -= 1
        return reply

    def cancel(self) -> None:
        """Cut the stream; the peer drops what it is doing for it."""
        self._call.cancel()

    async def close(self) -> None:
        """End the stream: in good order if the peer owes nothing, else by cutting it."""
        if self._pending == 0:
            self._requests.put_nowait(None)
            await asyncio.wait({self._reader}, timeout=CLOSE_SECONDS)
        self.cancel()
        await asyncio.wait({self._reader})

    async def _outgoing(self) -> AsyncIterator[Any]:
        while (message := await self._requests.get()) is not None:
            yield message

    async def _read(self) -> None:
        self._replies.put_nowait(await self._until_the_end())
        self._requests.put_nowait(None)
        self.cancel()

    async def _until_the_end(self) -> AdasdError:
        try:
            async for message in self._call:
                self._replies.put_nowait(self._decode(message))
        except AdasdError as error:
            return error
        except grpc.aio.AioRpcError as error:
            return error_of(await self._peers_status(error))
        except asyncio.CancelledError:
            return ServiceUnavailable("the stream was cut")
        return ServiceUnavailable("the peer ended the stream")

    def _note_status(self, call: Any) -> None:
        """Keep what the peer said, once it has: a write that fails later overwrites it."""
        if not self._told.is_set():
            metadata = _at_once(call.trailing_metadata()) or grpc.aio.Metadata()
            code, details = _at_once(call.code()), _at_once(call.details())
            self._status = grpc.aio.AioRpcError(code, grpc.aio.Metadata(), metadata, details, "")
            if not is_grpcs_own_fault(self._status):
                self._told.set()

    async def _peers_status(self, error: grpc.aio.AioRpcError) -> grpc.aio.AioRpcError:
        """What the peer said at the end. A write that fails as the call ends hides it (grpc/grpc#36066)."""
        with suppress(TimeoutError):
            async with asyncio.timeout(STATUS_SECONDS):
                await self._told.wait()
        return self._status or error


def _at_once(answer: Coroutine[Any, Any, Any]) -> Any:
    """The result of a coroutine that has nothing to wait for."""
    try:
        answer.send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("a call that is done knows its status")
