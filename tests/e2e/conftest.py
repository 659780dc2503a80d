"""Running stacks: the real three services and a real Redis, with toy pairs and with the demo pair."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import httpx
import pytest

from adasd.cli.stack import Stack, StackOptions
from adasd.runtime.loading import RuntimeOptions, load_grammars, load_model
from adasd.runtime.local import LocalPair
from adasd.runtime.replica import Replica
from adasd.runtime.toy import ToySpec, is_toy, write_toy_model
from adasd.state.base import StoredSession
from adasd.state.redis_store import RedisStore

TOY = "toy:seed=1,vocab=48,sharpness=1.5,eos_bias=-4,context=640"
DRAFTS = {
    "twin": TOY,
    "between": TOY + ",mix=0.35,stranger=2",
    "stranger": TOY.replace("seed=1", "seed=9"),
}


@dataclass
class Served:
    """A running stack as a test sees it."""

    stack: Stack
    redis_url: str
    model: str
    draft: str
    target: str

    @cached_property
    def client(self) -> httpx.Client:
        return httpx.Client(base_url=self.stack.url, timeout=120)

    def post(self, prompt: str = "hello there", **fields: Any) -> httpx.Response:
        body = {"model": self.model, "messages": [{"role": "user", "content": prompt}], **fields}
        return self.client.post("/v1/chat/completions", json=body)

    def answer(self, prompt: str = "hello there", **fields: Any) -> dict[str, Any]:
        """A completed answer; `ids` are its token ids, read from the session record."""
        reply = self.post(prompt, **fields)
        assert reply.status_code == 200, reply.text
        (stored,) = self.stored(reply.headers["x-session-id"])
        record = stored.record
        return reply.json() | {"ids": list(stored.ids[len(record.prompt) :]), "prompt_ids": list(record.prompt)}

    def stored(self, *sessions: str) -> list[StoredSession]:
        """Session records by their ids, as `X-Session-Id` gives them."""

        async def load() -> list[StoredSession | None]:
            store = RedisStore(self.redis_url)
            try:
                return [await store.load(bytes.fromhex(session)) for session in sessions]
            finally:
                await store.close()

        found = [record for record in asyncio.run(load()) if record is not None]
        assert len(found) == len(sessions)
        return found

    def in_flight(self) -> dict[str, float]:
        """Requests and streams each service works on, as its own metrics say."""
        urls = {"gateway": f"{self.stack.url}/metrics"} | self.stack.metrics
        names = {"gateway": "adasd_gateway_inflight_requests"}
        return {name: gauge(url, names.get(name, f"adasd_{name}_inflight_streams")) for name, url in urls.items()}

    def wait_idle(self, seconds: float = 10.0) -> dict[str, float]:
        """What is in flight once nothing is, or after so long."""
        deadline = time.monotonic() + seconds
        while any((busy := self.in_flight()).values()) and time.monotonic() < deadline:
            time.sleep(0.1)
        return busy

    @cached_property
    def oracle(self) -> LocalPair:
        """The same two models in this process."""
        options = RuntimeOptions(target=None if is_toy(self.target) else Path(self.target))
        draft, target = (
            Replica(*load_model(spec, role, options), None, load_grammars(spec, options))  # type: ignore[arg-type]
            for spec, role in ((self.draft, "draft"), (self.target, "target"))
        )
        return LocalPair(draft, target)


def gauge(url: str, name: str) -> float:
    """Of all labels together."""
    lines = httpx.get(url, timeout=10).text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(name) and not line.startswith("#"))


def serve(
    folder: Path,
    redis_url: str,
    draft: str,
    target: str,
    tokenizer: Path,
    modules: Mapping[str, str] | None = None,
    environment: Mapping[str, str] | None = None,
    beside: bool = False,
) -> Iterator[Served]:
    options = StackOptions(
        draft=draft,
        target=target,
        tokenizer=tokenizer,
        model_name="test",
        logs=folder / "logs",
        port=0,
        redis_url=redis_url,
        modules=modules or {},
        environment=environment or {},
        beside=beside,
    )
    with Stack(options) as stack:
        stack.wait_ready(180)
        served = Served(stack, redis_url, "test", draft, target)
        yield served
        served.client.close()


@pytest.fixture(scope="session")
def toy_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("toy-tokenizer")
    write_toy_model(folder, ToySpec.parse(TOY))
    return folder


@pytest.fixture(scope="session")
def twin(tmp_path_factory: pytest.TempPathFactory, redis_url: str, toy_tokenizer: Path) -> Iterator[Served]:
    """Drafter and verifier load the same weights."""
    yield from serve(tmp_path_factory.mktemp("twin"), redis_url, DRAFTS["twin"], TOY, toy_tokenizer)


@pytest.fixture(scope="session")
def between(tmp_path_factory: pytest.TempPathFactory, redis_url: str, toy_tokenizer: Path) -> Iterator[Served]:
    """A draft that often agrees with its target."""
    yield from serve(tmp_path_factory.mktemp("between"), redis_url, DRAFTS["between"], TOY, toy_tokenizer)


@pytest.fixture(scope="session")
def beside(tmp_path_factory: pytest.TempPathFactory, redis_url: str, toy_tokenizer: Path) -> Iterator[Served]:
    """The same with the drafter beside the verifier, and three rounds for one message."""
    folder, several = tmp_path_factory.mktemp("beside"), {"ADASD_GATEWAY_ROUNDS_AT_ONCE": "3"}
    yield from serve(folder, redis_url, DRAFTS["between"], TOY, toy_tokenizer, environment=several, beside=True)


@pytest.fixture(scope="session")
def stranger(tmp_path_factory: pytest.TempPathFactory, redis_url: str, toy_tokenizer: Path) -> Iterator[Served]:
    """A draft that agrees by chance only."""
    yield from serve(tmp_path_factory.mktemp("stranger"), redis_url, DRAFTS["stranger"], TOY, toy_tokenizer)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory, redis_url: str) -> Iterator[Served]:
    """The demo pair."""
    from adasd.runtime.pair import ensure_demo_pair

    models = ensure_demo_pair()
    folder = tmp_path_factory.mktemp("pair")
    yield from serve(folder, redis_url, str(models.draft), str(models.target), models.target)
