"""Lua scripts of one Redis, by name. What is asked for at the same time goes there together."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

import redis.asyncio as redis
from redis.exceptions import NoScriptError


@dataclass(frozen=True, slots=True)
class _Call:
    script: Any  # redis-py's AsyncScript
    keys: Sequence[str]
    arguments: Sequence[bytes]
    answer: asyncio.Future[Any]

    def answered(self, reply: object) -> None:
        """Nobody waits any more for a call that was given up on."""
        if self.answer.done():
            return
        if isinstance(reply, BaseException):
            self.answer.set_exception(reply)
        else:
            self.answer.set_result(reply)


class Scripts:
    """Sessions that share a pass commit at the same time: one pipeline for all of them costs their gateway little more
    than one command. Not a transaction: each script is one, and each call has its own reply or error.

    A call that is given up on is made all the same, for as long as any may take.
    """

    def __init__(self, client: redis.Redis, names: Sequence[str], seconds: float) -> None:
        """seconds: that a call may take; then its connection is closed."""
        self._client = client
        self._seconds = seconds
        self._scripts = {name: client.register_script(_source(f"{name}.lua")) for name in names}
        self._waiting: list[_Call] = []
        self._sending: set[asyncio.Task[None]] = set()

    async def call(self, name: str, keys: Sequence[str], arguments: Sequence[bytes]) -> Any:
        """The reply of a script. Raises what redis-py raises."""
        loop = asyncio.get_running_loop()
        call = _Call(self._scripts[name], keys, arguments, loop.create_future())
        self._waiting.append(call)
        if len(self._waiting) == 1:
            loop.call_soon(self._send)  # after whoever else is about to call
        return await call.answer

    def _send(self) -> None:
        calls, self._waiting = self._waiting, []
        task = asyncio.create_task(self._answer(calls))
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    async def _answer(self, calls: Sequence[_Call]) -> None:
        replies: Sequence[object]
        try:
            async with asyncio.timeout(self._seconds):
                replies = await self._replies(calls)
        except BaseException as error:  # whatever it is, somebody waits for it
            replies = [error] * len(calls)
        for call, reply in zip(calls, replies, strict=True):
            call.answered(reply)

    async def _replies(self, calls: Sequence[_Call]) -> Sequence[object]:
        pipeline = self._client.pipeline(transaction=False)
        for call in calls:
            pipeline.evalsha(call.script.sha, len(call.keys), *call.keys, *call.arguments)
        replies = await pipeline.execute(raise_on_error=False)
        return [await self._loaded(*pair) for pair in zip(calls, replies, strict=True)]

    async def _loaded(self, call: _Call, reply: object) -> object:
        """The reply, once the server has the script: a new one has none."""
        if not isinstance(reply, NoScriptError):
            return reply
        try:
            return await call.script(call.keys, call.arguments)
        except Exception as error:
            return error


def _source(script: str) -> str:
    return resources.files("adasd.state").joinpath("lua", script).read_text()
