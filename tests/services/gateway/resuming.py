"""How tests watch a stream, come back to it, and make its gateway let go of it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import httpx

from tests.services.gateway.conftest import Gateway, named_events

RULES: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "coupled": {"seed": 5, "speculation": {"acceptance": "coupled"}},
    "sampled": {"seed": 6, "speculation": {"acceptance": "adasd"}, "stop": ["never", "aa~~aa"]},
    "weighed": {"seed": 7, "speculation": {"stopping": "marginal", "acceptance": "exact"}},
    "unseeded": {"temperature": 0.05, "speculation": {"stopping": "fixed", "max_candidates": 2, "trace": True}},
}


@dataclass
class Told:
    """What a client was told by one stream."""

    session: str
    names: list[str]
    pieces: list[str]
    data: list[Any]

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    @property
    def error(self) -> Any:
        return self.data[-1].get("error") if isinstance(self.data[-1], dict) else None

    @property
    def finish(self) -> Any:
        (reason,) = [r for chunk in self.data[:-1] for c in chunk["choices"] if (r := c["finish_reason"])]
        return reason

    @property
    def account(self) -> Any:
        """Usage and what speculation did."""
        return {name: self.data[-2][name] for name in ("usage", "speculation")}


def told(reply: httpx.Response) -> Told:
    events = named_events(reply)
    choices = [data["choices"] if isinstance(data, dict) and "choices" in data else [] for _, data in events]
    pieces = [choice[0]["delta"].get("content") or "" if choice else "" for choice in choices]
    return Told(reply.headers["x-session-id"], [name for name, _ in events], pieces, [data for _, data in events])


async def streamed(gateway: Gateway, prompt: str = "hello", **fields: Any) -> Told:
    options = {"stream": True, "stream_options": {"include_usage": True}, "max_tokens": 60}
    reply = await gateway.post(prompt, **{**options, **fields})
    assert reply.status_code == 200, reply.text
    return told(reply)


async def resume(gateway: Gateway, session: str, position: str = "", **headers: str) -> httpx.Response:
    if position:
        headers["Last-Event-ID"] = position
    return await gateway.client.get(f"/v1/sessions/{session}/stream", headers=headers)


async def followed(gateway: Gateway, session: str, **headers: str) -> asyncio.Task[httpx.Response]:
    """A client who takes up the stream there, and has been told the first of it."""
    told = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        async def sent(message: Any) -> None:
            await send(message)
            if message["type"] == "http.response.body":
                told.set()

        await gateway.app(scope, receive, sent)

    async def get() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway") as client:
            return await client.get(f"/v1/sessions/{session}/stream", headers=headers)

    following = asyncio.create_task(get())
    async with asyncio.timeout(20):
        await told.wait()
    return following


async def let_go(gateway: Gateway, session: str) -> None:
    """As if its owner had shown no sign of life for the length of a lease."""
    await gateway.store._client.hset(f"adasd:{{{session}}}:meta", "lease", "1")  # type: ignore[misc]


async def handed_over(held: Gateway, to: Gateway, rounds: int, **fields: Any) -> tuple[Told, Told]:
    """What is told of a stream whose gateway sticks before its round `rounds`, by the one that then takes it over, and
    to its first client.
    """
    held.peers.held = {rounds: asyncio.Event()}
    first = asyncio.create_task(streamed(held, **fields))
    session = await running_session(held, rounds)
    await let_go(held, session)
    taken = told(await resume(to, session))
    held.peers.held[rounds].set()
    return taken, await first


async def running_session(gateway: Gateway, rounds: int) -> str:
    """The id of the one session that runs, once it has so many rounds."""
    client = gateway.store._client
    async with asyncio.timeout(20):
        while True:
            for key in await client.keys("adasd:*:meta"):
                owner, count, finish = await client.hmget(key, "owner", "round", "finish_reason")  # type: ignore[misc]
                if finish is None and owner == gateway.services.engine.owner.encode() and int(count) == rounds:
                    return str(key.split(b"{")[1].split(b"}")[0].decode())
            await asyncio.sleep(0.01)
