"""One HTTP reply, JSON or server-sent events, and the watch over the client it goes to."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, TypeVar

import orjson
from starlette.responses import Response
from starlette.types import Receive, Send

from adasd.core.errors import AdasdError
from services.gateway.deadlines import Deadline
from services.gateway.errors import Unavailable, error_body, error_response, json_response

EVENT_STREAM_HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",
}
T = TypeVar("T")

DONE = b"data: [DONE]\n\n"
READ_SECONDS = 60.0
"""For a client to read what is under way to it, before it counts as gone: its session is held meanwhile."""


class ClientGone(Exception):
    """The client closed its connection, or does not read from it, and its answer is not kept for it."""


class Reply:
    """What goes back for one request. The stream begins with its first event: errors before it keep their status.

    streaming: the first event is out. complete: the last of it has been handed to the server.
    left: set when the client has gone; what is sent to it from then on is dropped.
    """

    def __init__(self, send: Send, headers: Mapping[str, str], read_seconds: float = READ_SECONDS) -> None:
        self._send = send
        self._reading = Deadline(read_seconds)
        self._headers = dict(headers)
        self.streaming = False
        self.complete = False
        self.left = asyncio.Event()
        self._turn = asyncio.Lock()  # several choices share a stream

    async def json(self, body: object) -> None:
        await self._respond(json_response(body, headers=self._headers))

    async def event(self, body: object, name: str | None) -> None:
        """name: the event's id, which the client repeats when it comes back; None where it cannot."""
        line = b"" if name is None else b"id: " + name.encode() + b"\n"
        await self._write(line + b"data: " + orjson.dumps(body) + b"\n\n", more=True)

    async def done(self) -> None:
        """The end of a complete stream."""
        await self._write(DONE, more=False)

    async def fail(self, error: AdasdError) -> None:
        """An error reply, or in mid-stream a last event; the stream then ends without `[DONE]`."""
        if self.streaming:
            await self._write(b"data: " + orjson.dumps(error_body(error)) + b"\n\n", more=False)
        else:
            response = error_response(error)
            response.headers.update(self._headers)
            await self._respond(response)

    async def _respond(self, response: Response) -> None:
        await self._start(response.status_code, response.raw_headers)
        await self._body(bytes(response.body), more=False)

    async def _write(self, data: bytes, more: bool) -> None:
        async with self._turn:
            if not self.streaming:
                headers = {**EVENT_STREAM_HEADERS, **self._headers}
                await self._start(200, [(name.lower().encode(), value.encode()) for name, value in headers.items()])
                self.streaming = True
            await self._body(data, more)

    async def _body(self, data: bytes, more: bool) -> None:
        self.complete = not more
        if self.left.is_set():
            return
        try:
            with self._reading:
                await self._send({"type": "http.response.body", "body": data, "more_body": more})
        except TimeoutError:
            self.left.set()

    async def _start(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        if not self.left.is_set():
            await self._send({"type": "http.response.start", "status": status, "headers": headers})


async def while_client_listens(
    work: Coroutine[Any, Any, T],
    reply: Reply,
    receive: Receive,
    stopping: asyncio.Event,
    unwanted: Callable[[], Awaitable[None]],
) -> T:
    """Run `work` to its end, unless the client goes (ClientGone) or the gateway stops (Unavailable) before.

    unwanted: returns when nobody waits for a client that has gone; work goes on until then. `work` is cancelled in the
    end, and has cleaned up when this returns. The request's body must have been received.
    """
    working = asyncio.create_task(work)
    gone = asyncio.create_task(_gone(receive, reply, unwanted))
    tasks: list[asyncio.Task[Any]] = [working, gone, asyncio.create_task(stopping.wait())]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if working.done() or reply.complete:  # servers report a disconnect at the end of every reply
            return await working
        if gone.done():
            raise ClientGone
        raise Unavailable("the gateway is stopping")
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _gone(receive: Receive, reply: Reply, unwanted: Callable[[], Awaitable[None]]) -> None:
    """Returns once the client has closed its connection, or reads nothing from it, and nobody waits for it."""
    signs: list[asyncio.Task[Any]] = [
        asyncio.create_task(_disconnected(receive)),
        asyncio.create_task(reply.left.wait()),
    ]
    try:
        await asyncio.wait(signs, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for sign in signs:
            sign.cancel()
        await asyncio.gather(*signs, return_exceptions=True)
    reply.left.set()
    await unwanted()


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
