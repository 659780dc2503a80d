"""One reply, whoever reads it."""

from __future__ import annotations

import asyncio

from starlette.types import Message

from adasd.core.errors import Overloaded
from services.gateway.sse import Reply


async def test_a_client_that_does_not_read_counts_as_gone() -> None:
    async def send(message: Message) -> None:
        if message["type"] == "http.response.body":
            await asyncio.Event().wait()

    async with asyncio.timeout(20):
        reply = Reply(send, {}, read_seconds=0.01)
        await reply.event({}, "0-a")
        assert reply.left.is_set()
        await reply.event({}, "1-b")


async def test_an_error_keeps_its_status_until_the_first_event() -> None:
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    await Reply(send, {"X-Session-Id": "s"}).fail(Overloaded("full"))
    streaming = Reply(send, {})
    await streaming.event({"a": 1}, "0-a")
    await streaming.fail(Overloaded("full"))
    assert [message["status"] for message in sent if "status" in message] == [429, 200]
    headers = dict(sent[0]["headers"])
    assert (headers[b"retry-after"], headers[b"x-session-id"]) == (b"1", b"s")
    assert sent[-1]["body"].startswith(b'data: {"error":{"message":"full"')
    assert not sent[-1]["more_body"]
