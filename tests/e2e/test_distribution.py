"""Many short generations through the real services against the target's own distribution."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import chi2

from adasd.core.sampling import softmax
from adasd.core.types import FloatArray
from adasd.runtime.base import Segment
from adasd.runtime.loading import RuntimeOptions, load_model
from adasd.runtime.toy import ToySpec, write_toy_model
from tests.e2e.conftest import Served, serve

TARGET = "toy:seed=3,vocab=6,sharpness=1.2,eos_bias=-30"
DRAFT = TARGET + ",mix=0.5,stranger=4"
SPECULATION = {"stopping": "adasd", "acceptance": "exact", "max_candidates": 2}


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    write_toy_model(tmp_path / "tokenizer", ToySpec.parse(TARGET))
    return tmp_path / "tokenizer"


@pytest.fixture
def served(request: pytest.FixtureRequest, tmp_path: Path, redis_url: str, tokenizer: Path) -> Iterator[Served]:
    modules = {"verifier": request.param} if request.param else {}
    yield from serve(tmp_path, redis_url, DRAFT, TARGET, tokenizer, modules)


def pairs_of_the_target(prompt: list[int]) -> FloatArray:
    """P(second token, third token) of the target alone, [vocabulary, vocabulary], by enumeration."""
    runtime, _ = load_model(TARGET, "target", RuntimeOptions())

    def row(ids: list[int]) -> FloatArray:
        return softmax(runtime.forward([Segment(b"0" * 16, 0, ids, 1)])[0][0])

    pairs = np.zeros((6, 6))
    for first, p_first in enumerate(row(prompt)):
        for second, p_second in enumerate(row([*prompt, first])):
            pairs[second] += p_first * p_second * row([*prompt, first, second])
    return pairs


def p_value(served: Served, generations: int) -> float:
    """Chi-square of the pairs (second, third token) over seeded generations."""

    def one(seed: int) -> str:
        reply = served.post("a", max_tokens=3, seed=seed, temperature=1.0, speculation=SPECULATION)
        assert reply.status_code == 200, reply.text
        return reply.headers["x-session-id"]

    with ThreadPoolExecutor(8) as pool:
        records = served.stored(*pool.map(one, range(generations)))
    prompt = list(records[0].record.prompt)
    observed, expected = np.zeros((6, 6)), pairs_of_the_target(prompt) * generations
    for record in records:
        _, second, third = record.ids[len(prompt) :]
        observed[second, third] += 1
    used = expected > 5
    assert observed[expected < 1e-6].sum() == 0
    return float(chi2.sf(((observed - expected)[used] ** 2 / expected[used]).sum(), used.sum() - 1))


@pytest.mark.slow
@pytest.mark.parametrize("served", [None], indirect=True, ids=["exact"])
def test_exact_acceptance_follows_the_target(served: Served) -> None:
    assert p_value(served, 1500) > 0.001


@pytest.mark.slow
@pytest.mark.parametrize("served", ["tests.e2e.broken_verifier"], indirect=True, ids=["broken"])
def test_the_same_test_sees_a_broken_acceptance(served: Served) -> None:
    assert p_value(served, 1000) < 0.001
