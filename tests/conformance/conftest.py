"""The running stack as clients meet it: keys, a recording proxy in front, unmodified SDKs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from adasd.runtime.toy import ToySpec, write_toy_model
from services.gateway.keys import key_line, new_key
from tests.conformance.recorder import Recorder, recording
from tests.e2e.conftest import DRAFTS, TOY, Served, serve

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # read when litellm is imported: it would fetch prices

MODEL = "test"
KEY, NARROW_KEY = new_key(), new_key()
KEYS = [key_line("tester", KEY), key_line("narrow", NARROW_KEY, concurrency=1)]

Ask = Callable[..., dict[str, Any]]


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory, redis_url: str) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("conformance")
    write_toy_model(folder / "tokenizer", ToySpec.parse(TOY))
    environment = {"ADASD_GATEWAY_KEYS": ",".join(KEYS)}
    yield from serve(folder, redis_url, DRAFTS["between"], TOY, folder / "tokenizer", environment=environment)


@pytest.fixture
def recorder(served: Served) -> Iterator[Recorder]:
    """What clients sent in this test."""
    with recording(served.stack.url) as recorder:
        yield recorder


@pytest.fixture
def url(recorder: Recorder) -> str:
    """What clients call the base URL."""
    return f"{recorder.url}/v1"


@pytest.fixture
def again(served: Served, recorder: Recorder) -> Ask:
    """The answer to a recorded request, the last one by default, without SDK and stream."""

    def ask(place: int = -1) -> dict[str, Any]:
        exchange = [exchange for exchange in recorder.exchanges if exchange.body is not None][place]
        body = {**exchange.body, "stream": False, "stream_options": None}
        reply = served.client.post(exchange.path, json=body, headers={"Authorization": f"Bearer {KEY}"})
        assert reply.status_code == 200, reply.text
        answer: dict[str, Any] = reply.json()
        return answer

    return ask
