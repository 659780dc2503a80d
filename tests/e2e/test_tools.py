"""Calls of tools through the running services: a grammar's text over gRPC, read and told by the gateway."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from adasd.runtime.toy import ToySpec, write_toy_model
from tests.e2e.conftest import Served, serve

TARGET = "toy:seed=1,vocab=257,sharpness=1.5,context=640"
PARAMETERS = {
    "type": "object",
    "properties": {"unit": {"enum": ["C", "F"]}, "dry": {"type": "boolean"}},
    "required": ["unit", "dry"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "weather", "parameters": PARAMETERS}}


@pytest.fixture(scope="module")
def bytewise(tmp_path_factory: pytest.TempPathFactory, redis_url: str) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("tools")
    write_toy_model(folder / "tokenizer", ToySpec.parse(TARGET))
    yield from serve(folder, redis_url, f"{TARGET},mix=0.35,stranger=2", TARGET, folder / "tokenizer")


@pytest.mark.parametrize("acceptance", ["exact", "coupled"])
def test_a_required_call_is_made_whatever_the_model_would_write(bytewise: Served, acceptance: str) -> None:
    asked: dict[str, Any] = {
        "model": bytewise.client.get("/v1/models").json()["data"][0]["id"],
        "messages": [{"role": "user", "content": "hi"}],
        "tools": [TOOL],
        "tool_choice": {"type": "function", "function": {"name": "weather"}},
        "speculation": {"acceptance": acceptance, "stopping": "fixed"},
        "seed": 3,
    }
    (choice,) = bytewise.client.post("/v1/chat/completions", json=asked).json()["choices"]
    (call,) = choice["message"]["tool_calls"]
    assert (choice["finish_reason"], choice["message"]["content"]) == ("tool_calls", None)
    assert json.loads(call["function"]["arguments"]).keys() == {"unit", "dry"}
    with bytewise.client.stream("POST", "/v1/chat/completions", json={**asked, "stream": True}) as reply:
        lines = [line.removeprefix("data: ") for line in reply.iter_lines() if line.startswith("data: {")]
    deltas = [delta for line in lines for delta in json.loads(line)["choices"][0]["delta"].get("tool_calls", ())]
    assert "".join(delta["function"]["arguments"] for delta in deltas) == call["function"]["arguments"]
