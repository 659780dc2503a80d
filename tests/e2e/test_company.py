"""A seeded request's text is its own: alone, and among seven others that run with it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.e2e.conftest import Served

PENALTIES = {"frequency_penalty": 0.7, "presence_penalty": 0.3, "repetition_penalty": 1.2}
KINDS: dict[str, dict[str, Any]] = {
    "coupled": {"speculation": {"acceptance": "coupled"}, "temperature": 1.0},
    "exact": {"speculation": {"acceptance": "exact", "stopping": "fixed"}, "temperature": 0.8, "top_p": 0.9},
    "adasd": {"speculation": {"acceptance": "adasd", "stopping": "adasd"}, "temperature": 1.0, "top_k": 20},
    "anchored": {"speculation": {"acceptance": "adasd-anchored", "stopping": "adasd"}, "min_p": 0.02},
    "marginal": {"speculation": {"acceptance": "exact", "stopping": "marginal"}},
    "penalties": {"speculation": {"acceptance": "exact", "stopping": "adasd"}, **PENALTIES},
    "penalties, coupled": {"speculation": {"acceptance": "coupled"}, "min_tokens": 10, **PENALTIES},
    "biased, greedy": {"temperature": 0, "logit_bias": {"5": 3, "0": -100}},
}
COMPANY = 8


def asked(number: int, **fields: Any) -> dict[str, Any]:
    """One of eight requests: a prompt, seed, length and rule of its own."""
    kinds = list(KINDS.values())
    own = {"prompt": f"request {number} asks {'more ' * number}", "seed": 100 + number, "max_tokens": 30 + 5 * number}
    return {**own, **kinds[number % len(kinds)], **fields}


def outcome(answer: dict[str, Any]) -> tuple[Any, ...]:
    """All of it that must be the same in every bit. A drafter late on a busy machine costs candidates, not text."""
    return answer["ids"], answer["choices"], answer["usage"]


def together(served: Served, requests: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    with ThreadPoolExecutor(len(requests)) as pool:
        return [outcome(answer) for answer in pool.map(lambda request: served.answer(**request), requests)]


@pytest.mark.parametrize("kind", KINDS)
def test_a_text_is_the_same_alone_and_in_company(between: Served, kind: str) -> None:
    requests = [asked(number) for number in range(COMPANY - 1)] + [asked(COMPANY, **KINDS[kind])]
    alone = outcome(between.answer(**requests[-1]))
    assert together(between, requests)[-1] == alone
