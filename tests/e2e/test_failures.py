"""What goes wrong on a running stack, and that the next request works."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from adasd.bench.sse import stream_chat
from adasd.cli.processes import Child
from tests.e2e.conftest import DRAFTS, TOY, Served, gauge, serve

SLOW = ",delay_ms=4"


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory, redis_url: str, toy_tokenizer: Path) -> Iterator[Served]:
    """A pair whose forwards take a few milliseconds, so that things can happen in mid-stream."""
    folder = tmp_path_factory.mktemp("slow")
    yield from serve(folder, redis_url, DRAFTS["between"] + SLOW, TOY + SLOW, toy_tokenizer)


LONG = {"max_tokens": 500, "temperature": 0}


def chat(served: Served, **fields: object) -> dict[str, object]:
    return {"model": served.model, "messages": [{"role": "user", "content": "go on"}], **LONG, **fields}


@pytest.mark.parametrize("stream", [True, False])
def test_when_the_client_is_gone_all_three_services_stop(slow: Served, stream: bool) -> None:
    client = httpx.Client(base_url=slow.stack.url, timeout=30)
    if stream:
        with client.stream("POST", "/v1/chat/completions", json=chat(slow, stream=True)) as reply:
            lines = reply.iter_lines()
            while "content" not in next(lines):
                pass
            assert all(slow.in_flight().values())
    else:
        with pytest.raises(httpx.ReadTimeout):
            client.post("/v1/chat/completions", json=chat(slow), timeout=0.3)
    client.close()
    assert set(slow.wait_idle().values()) == {0.0}
    assert slow.answer(max_tokens=5, ignore_eos=True)["usage"]["completion_tokens"] == 5


@contextmanager
def held(child: Child) -> Iterator[None]:
    """Nothing comes of it meanwhile: whatever takes long in a test takes no tokens of a text."""
    child.send(signal.SIGSTOP)
    try:
        yield
    finally:
        child.send(signal.SIGCONT)


def wait_for(served: Served, drafters: int) -> None:
    """Until the gateway knows so many that take its streams."""
    give_up = time.monotonic() + 30
    healthy = 'adasd_gateway_replicas{service="drafter",state="healthy"}'
    while gauge(f"{served.stack.url}/metrics", healthy) != drafters:
        assert time.monotonic() < give_up
        time.sleep(0.05)


def test_candidates_come_back_within_the_same_stream(slow: Served) -> None:
    """The drafter is killed after some text and restarted after some more: every token is the target's own."""
    alone = slow.answer("go on", **LONG, speculation={"stopping": "off"})
    drafter, text, pieces, final = slow.stack.children["drafter"], "", 0, {}
    for chunk in stream_chat(slow.client, chat(slow, speculation={"stopping": "adasd"})):
        text += "".join(choice["delta"].get("content") or "" for choice in chunk["choices"])
        pieces, final = pieces + 1, chunk
        if pieces == 5:
            os.kill(drafter.pid or 0, signal.SIGKILL)
            drafter.wait(10)
        if pieces == 30:
            with held(slow.stack.children["verifier"]):
                wait_for(slow, drafters=0)
                drafter.start()
                wait_for(slow, drafters=1)
    assert text == alone["choices"][0]["message"]["content"]
    record = final["speculation"]
    assert record["drafts"] < record["rounds"] - 20
    assert record["drafts"] > 10


BAD = [
    ({"model": "other"}, 404, "model"),
    ({"messages": []}, 400, "messages"),
    ({"temperature": -1}, 400, "temperature"),
    ({"messages": [{"role": "user", "content": "long " * 2000}]}, 400, "messages"),
    ({"frequency_penalty": 2.5}, 400, "frequency_penalty"),
    ({"speculation": {"stopping": "svip"}}, 400, "speculation.stopping"),
    ({"speculation": {"acceptance": "typical"}}, 400, "speculation.acceptance"),
    ({"nonsense": 1}, 400, "nonsense"),
]


@pytest.mark.parametrize(("change", "status", "param"), BAD, ids=[case[2] for case in BAD])
@pytest.mark.parametrize("stream", [True, False])
def test_bad_input_is_named_and_costs_nothing(
    slow: Served, change: dict[str, object], status: int, param: str, stream: bool
) -> None:
    reply = slow.client.post("/v1/chat/completions", json=chat(slow, stream=stream) | change)
    error = reply.json()["error"]
    assert (reply.status_code, error["param"]) == (status, param), error
    assert error["message"]
    after = slow.answer(max_tokens=3, ignore_eos=True)
    assert after["usage"]["completion_tokens"] == 3, after


def test_a_body_that_is_not_json(slow: Served) -> None:
    reply = slow.client.post("/v1/chat/completions", content=b"{", headers={"content-type": "application/json"})
    assert reply.status_code == 400
    assert reply.json()["error"]["message"]
    assert slow.post(max_tokens=3).status_code == 200


def test_a_prompt_too_long_says_both_numbers(slow: Served) -> None:
    error = slow.post("x" * 3000, max_tokens=3).json()["error"]
    assert error["code"] == "context_length_exceeded"
    assert "640" in error["message"]


def test_every_round_of_a_generation_uses_one_stream(slow: Served) -> None:
    """Streams opened, as drafter and verifier count them, against rounds."""
    before = {name: gauge(url, f"adasd_{name}_requests_total") for name, url in slow.stack.metrics.items()}
    record = slow.answer(max_tokens=60, temperature=0, speculation={"stopping": "fixed"})["speculation"]
    after = {name: gauge(url, f"adasd_{name}_requests_total") for name, url in slow.stack.metrics.items()}
    assert {name: after[name] - before[name] for name in after} == {"drafter": 1.0, "verifier": 1.0}
    assert record["rounds"] > 5
