"""A gateway in this process: the real application over toy models and a real Redis."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest
from fastapi import FastAPI

from adasd.core.costs import NOMINAL, CostProfile
from adasd.runtime.local import LocalPair
from adasd.runtime.toy import ToySpec, write_toy_model
from adasd.state.base import StoredSession
from adasd.state.connection import StoreSettings
from adasd.state.redis_store import RedisStore
from services.gateway.admission import Admission
from services.gateway.app import GatewayServices, create_app
from services.gateway.body import Bodies
from services.gateway.costs import LiveCosts
from services.gateway.engine import Engine
from services.gateway.metrics import GatewayMetrics
from services.gateway.readiness import Capacity, Readiness
from services.gateway.rules import Rules
from services.gateway.runs import RunLength
from services.gateway.security import Edge
from services.gateway.text import ChatText
from services.gateway.traces import script_spans
from services.tracing import OFF, Tracing
from tests.services.gateway.local_peers import LocalPeers, present, replica

TARGET = "toy:seed=1,vocab=48,sharpness=1.5,eos_bias=-4,context=200"
STRANGER = ",mix=0.3,stranger=2"


@dataclass
class Gateway:
    """The application, and what is behind it."""

    app: FastAPI
    services: GatewayServices
    peers: LocalPeers
    store: RedisStore
    client: httpx.AsyncClient

    async def post(self, prompt: str = "hello", **fields: Any) -> httpx.Response:
        body = {"model": "toy", "messages": [{"role": "user", "content": prompt}], **fields}
        return await self.client.post("/v1/chat/completions", json=body)

    async def complete(self, prompt: object = "hello", **fields: Any) -> httpx.Response:
        return await self.client.post("/v1/completions", json={"model": "toy", "prompt": prompt, **fields})

    async def stored(self, reply: httpx.Response) -> StoredSession:
        session = await self.store.load(bytes.fromhex(reply.headers["x-session-id"]))
        assert session is not None
        return session

    async def metric(self, name: str) -> float:
        """The sample of that name, labels included; without labels the sum over all of them."""
        samples = (line.rpartition(" ") for line in (await self.client.get("/metrics")).text.splitlines())
        return sum(float(value) for series, _, value in samples if name in (series, series.partition("{")[0]))

    @property
    def oracle(self) -> LocalPair:
        return self.oracle_of(TARGET)

    def oracle_of(self, spec: str) -> LocalPair:
        return LocalPair(replica(spec + STRANGER), replica(spec))


def events(reply: httpx.Response) -> list[Any]:
    """The data of every event; `[DONE]` as it is."""
    return [data for _, data in named_events(reply)]


def named_events(reply: httpx.Response) -> list[tuple[str, Any]]:
    """Id ("" if there is none) and data of every event."""
    assert reply.headers["content-type"].startswith("text/event-stream"), reply.text
    blocks = reply.text.split("\n\n")
    assert blocks.pop() == ""
    return [parsed(block) for block in blocks]


def parsed(block: str) -> tuple[str, Any]:
    """One event."""
    fields = dict(line.split(": ", 1) for line in block.splitlines())
    data = fields["data"]
    return fields.get("id", ""), data if data == "[DONE]" else orjson.loads(data)


@pytest.fixture(scope="session")
def toy_text(tmp_path_factory: pytest.TempPathFactory) -> ChatText:
    folder: Path = tmp_path_factory.mktemp("toy")
    write_toy_model(folder, ToySpec.parse(TARGET))
    return ChatText.load(folder)


@asynccontextmanager
async def gateway_of(
    redis_url: str,
    text: ChatText,
    owner: str = "test",
    spec: str = TARGET,
    settings: StoreSettings | None = None,
    edge: Edge | None = None,
    prior: CostProfile = NOMINAL,
    tracing: Tracing = OFF,
    draft: str = TARGET + STRANGER,
    runs: RunLength | None = None,
) -> AsyncIterator[Gateway]:
    """One gateway of several over one Redis, with models of its own.

    prior: the costs stated to it. runs: how many rounds without candidates it asks for at once.
    """
    peers, store = (
        LocalPeers(replica(draft), replica(spec)),
        RedisStore(redis_url, settings, around=script_spans(tracing)),
    )
    readiness = Readiness({"verifier": present, "drafter": present, "redis": store.ping})
    await readiness.probe()
    engine = Engine(text, peers, store, GatewayMetrics(), owner, LiveCosts(prior, runs=runs), tracing=tracing)
    services = GatewayServices(
        engine,
        Admission(text, ("toy", "toy-alias"), Rules("adasd"), costs=engine.costs),
        readiness,
        Capacity(4),
        Bodies(limit=100_000),
        edge or Edge(),
        resume_wait=0.3,
    )
    app = create_app(services)
    transport = httpx.ASGITransport(app, raise_app_exceptions=True)
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
        yield Gateway(app, services, peers, store, client)
    await store.close()
    assert peers.open == 0, "every stream is closed"


@pytest.fixture
async def gateway(redis_url: str, toy_text: ChatText) -> AsyncIterator[Gateway]:
    async with gateway_of(redis_url, toy_text) as gateway:
        yield gateway


@pytest.fixture
async def other(redis_url: str, toy_text: ChatText) -> AsyncIterator[Gateway]:
    """Another gateway of the same service."""
    async with gateway_of(redis_url, toy_text, "other") as gateway:
        yield gateway
