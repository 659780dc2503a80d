"""What both interfaces refuse or take alike: every sampling field at its edges, streamed and not, on the wire."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from tests.services.gateway.conftest import Gateway

OWN = {
    "/v1/chat/completions": {"model": "toy", "messages": [{"role": "user", "content": "hi"}]},
    "/v1/completions": {"model": "toy", "prompt": "hi"},
}
HUGE = 10**30
EDGES: dict[str, tuple[list[object], list[object]]] = {
    "temperature": ([0, 1e-9, 2, 2.0, None], [-1, -1e-9, 2.1, 1e9, "0.5", True, [], {}]),
    "top_p": ([1e-9, 0.5, 1, None], [0, -0.5, 1.0001, "1", False, [0.5]]),
    "top_k": ([-1, 0, 1, 2**31 - 1, None], [-2, 1.5, 2**31, HUGE, "1", True]),
    "min_p": ([0, 1, 0.5, None], [-0.1, 1.1, "0", True]),
    "n": ([1, 1.0, 2, None], [0, -1, 9, 129, 1.5, "1", True]),
    "max_tokens": ([1, 2**63 - 1], [0, -1, 1.5, 1e12, 2**63, HUGE, "5", True]),
    "min_tokens": ([0, 1, None], [-1, 2**31, 0.5, "1", True]),
    "seed": ([0, -(2**63), 2**63 - 1, None], [2**63, -(2**63) - 1, 1.5, "1", True]),
    "stop": (["a", ["a"], ["a", "b", "c", "d"], None], ["", [], ["a"] * 5, [""], "x" * 1025, [5], {}, 1]),
    "frequency_penalty": ([-2, 0, 2, None], [-2.1, 2.1, "0", True]),
    "presence_penalty": ([-2, 0, 2, None], [-2.1, 2.1, "0", True]),
    "repetition_penalty": ([0.1, 1, 100, None], [0, -1, 101, "1", True]),
    "logit_bias": (
        [{}, {"0": -100}, {"47": 100}, None],
        [{"48": 1}, {"-1": 1}, {"a": 1}, {"0": 101}, {"0": "1"}, [], 5],
    ),
    "ignore_eos": ([True, False, None], [1, "true", []]),
    "user": (["somebody", "", None], [5, {}]),
    "speculation": ([{}, {"stopping": "off"}, None], ["off", {"nonsense": 1}, {"max_candidates": 65}]),
    "nonsense": ([], [1, None, "x"]),
}


async def answered(gateway: Gateway, path: str, stream: bool, **fields: Any) -> httpx.Response:
    body = {**OWN[path], "max_tokens": 2, "stream": stream, **fields}
    return await gateway.client.post(path, content=written(body), headers={"Content-Type": "application/json"})


def written(body: dict[str, Any]) -> str:
    """Numbers beyond 64 bits included."""
    return json.dumps(body)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", OWN)
@pytest.mark.parametrize("name", EDGES)
async def test_edges(gateway: Gateway, path: str, name: str, stream: bool) -> None:
    taken, refused = EDGES[name]
    for value in refused:
        reply = await answered(gateway, path, stream, **{name: value})
        error = reply.json()["error"]
        assert (reply.status_code, error["type"]) == (400, "invalid_request_error"), value
        assert error["param"].startswith(name), value
        assert name in error["message"], value
    for value in taken:
        reply = await answered(gateway, path, stream, **{name: value})
        assert reply.status_code == 200, (value, reply.text)
        assert reply.headers["content-type"].startswith("text/event-stream" if stream else "application/json")
    assert gateway.services.capacity.in_hand == 0
