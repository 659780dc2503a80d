"""Batches: an entry is bit for bit what it is alone, whatever is beside it. Compact logits: as if scattered."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from adasd.core.backend import Proposal, TargetRows, sound
from adasd.core.draws import CounterDraws, DrawKey, Purpose
from adasd.core.errors import InvalidRequest, NumericalFault
from adasd.core.rows import PointRow, sparse_row
from adasd.core.types import FloatArray, Row, SamplingParams
from adasd.kernels.device import DeviceKernels
from adasd.kernels.positions import Columns
from tests.kernels.backends import Backend, block
from tests.threads import threads_of_torch

INF, NAN = math.inf, math.nan
VOCABULARY = 1400
SETTINGS = (
    SamplingParams(),
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=0.7, top_p=0.9),
    SamplingParams(top_k=40, min_p=0.01),
    SamplingParams(temperature=2.0, top_p=0.99),
)
EVERYTHING = (*SETTINGS, *(replace(sampling, seed=7, choice=1) for sampling in SETTINGS))


def quantised(rng: np.random.Generator, *shape: int) -> FloatArray:
    """Logits with many equals, as narrow dtypes give them."""
    return np.round(rng.normal(0.0, 2.0, shape) * 8) / 8


def odd_rows(rng: np.random.Generator) -> FloatArray:
    """[8, VOCABULARY]: ordinary rows, and all that may stand beside them."""
    rows = np.concatenate([rng.normal(0.0, 3.0, (2, VOCABULARY)), quantised(rng, 6, VOCABULARY)])
    rows[3] = 0.0
    rows[4, ::3] = -INF
    rows[5, [3, 70]] = INF
    rows[6] = -INF
    rows[7, 5] = NAN
    return rows


def plain(outcome: Proposal | NumericalFault) -> Any:
    """An entry as something that compares."""
    if isinstance(outcome, NumericalFault):
        return str(outcome), outcome.side
    return outcome.entropy, outcome.row and shown(outcome.row)


def shown(row: Row) -> Any:
    return type(row), row.total, row.ids.tolist(), row.weights.tolist()


def judged(outcome: TargetRows[CounterDraws] | NumericalFault, length: int) -> Any:
    """All that can be asked of a block, as something that compares."""
    if isinstance(outcome, NumericalFault):
        return str(outcome), outcome.side
    rows = [PointRow(3), sparse_row(np.arange(0, 900, 7), np.full(129, 1 / 129))][: length - 1]
    candidates = block([3, 70][: len(rows)], rows)
    key = DrawKey(9, 0, Purpose.EMIT)
    emitted = [outcome.emit(i, minus, key, CounterDraws(5)) for i in range(length) for minus in (None, *rows)]
    return list(outcome.evidence(candidates)), emitted, list(outcome.coupled(11, CounterDraws(5)))


def alone(rule: Any, logits: Any, sampling: SamplingParams) -> Any:
    try:
        return rule(logits, sampling)
    except NumericalFault as fault:
        return fault


@pytest.mark.parametrize("support", [512, 3, None])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_proposal_does_not_depend_on_its_batch(backend: Backend, support: int | None, dtype: torch.dtype) -> None:
    rng = np.random.default_rng(1)
    kernels, logits = (
        replace(backend, dtype=dtype).kernels(support),
        replace(backend, dtype=dtype).logits(odd_rows(rng)),
    )
    for shift in range(3):
        samplings = [EVERYTHING[(3 * i + shift) % len(EVERYTHING)] for i in range(len(logits))]
        together = kernels.propose_batch(logits, samplings)
        apart = [alone(kernels.propose, row, sampling) for row, sampling in zip(logits, samplings, strict=True)]
        assert [plain(entry) for entry in together] == [plain(entry) for entry in apart]
        assert [isinstance(entry, NumericalFault) for entry in together] == [False] * 7 + [True]
    uniform = [SETTINGS[2]] * len(logits)
    expected = [plain(alone(kernels.propose, row, SETTINGS[2])) for row in logits]
    assert [plain(entry) for entry in kernels.propose_batch(logits, uniform)] == expected


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_block_does_not_depend_on_its_batch(backend: Backend, dtype: torch.dtype) -> None:
    """Blocks of one to three rows; a fault takes its own block along and no other."""
    rng = np.random.default_rng(2)
    chosen = replace(backend, dtype=dtype)
    rows = odd_rows(rng)
    lengths = [1, 3, 2, 2, 2, 1, 2]
    picks = [[0], [1, 2, 3], [4, 5], [0, 6], [7, 1], [5], [3, 2]]
    blocks = [chosen.logits(rows[pick]) for pick in picks]
    kernels = chosen.kernels()
    for samplings in (*([sampling] * len(blocks) for sampling in SETTINGS), EVERYTHING[: len(blocks)]):
        together = kernels.target_batch(blocks, samplings)
        apart = [alone(kernels.target, rows, sampling) for rows, sampling in zip(blocks, samplings, strict=True)]
        assert [judged(*entry) for entry in zip(together, lengths, strict=True)] == [
            judged(*entry) for entry in zip(apart, lengths, strict=True)
        ]
        assert [i for i, entry in enumerate(together) if isinstance(entry, NumericalFault)] == [3, 4]


@pytest.fixture(params=[1, 2], ids=lambda count: f"{count} threads")
def threads(request: pytest.FixtureRequest) -> Iterator[None]:
    with threads_of_torch(request.param):
        yield


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("sampling", [SamplingParams(0.8), SamplingParams(top_p=0.95)], ids=["plain", "top_p"])
def test_sums_over_a_wide_vocabulary_do_not_depend_on_the_batch(sampling: SamplingParams) -> None:
    """Torch splits a single long sum among its threads, but not several at once."""
    logits = torch.randn(3, 70_001, generator=torch.Generator().manual_seed(3)) * 3
    together = [sound(entry) for entry in DeviceKernels().propose_batch(logits, [sampling] * 3)]
    apart = [DeviceKernels().propose(row, sampling) for row in logits]
    assert [plain(entry) for entry in together] == [plain(entry) for entry in apart]
    blocks = [logits[:1], logits[1:]]
    for found, rows in zip(DeviceKernels().target_batch(blocks, [sampling] * 2), blocks, strict=True):
        assert judged(found, len(rows)) == judged(DeviceKernels().target(rows, sampling), len(rows))


def test_nothing_asked_is_nothing_answered(backend: Backend) -> None:
    kernels = backend.kernels()
    assert list(kernels.propose_batch(backend.logits(np.zeros((0, 4))), [])) == []
    assert list(kernels.target_batch([], [])) == []


# Compact logits


@given(
    seed=st.integers(0, 1000),
    known=st.sets(st.integers(0, 79), min_size=1, max_size=40),
    sampling=st.builds(
        SamplingParams,
        temperature=st.sampled_from([0.0, 0.7, 1.0]),
        top_k=st.sampled_from([0, 3, 20, 39, 60]),
        top_p=st.sampled_from([0.4, 0.9, 1.0]),
        min_p=st.sampled_from([0.0, 0.05]),
    ),
    support=st.sampled_from([None, 512, 5]),
    bans=st.booleans(),
)
@settings(max_examples=200, deadline=None)
def test_compact_logits_stand_for_scattered_ones(
    seed: int, known: set[int], sampling: SamplingParams, support: int | None, bans: bool
) -> None:
    """Rows and ties exactly; entropies but for the order in which a sum is taken."""
    ids = np.array(sorted(known), dtype=np.int64)
    compact = np.round(np.random.default_rng(seed).normal(0.0, 1.5, (2, len(ids))) * 2) / 2
    if bans:
        compact[0, ::2] = -INF
        compact[1, -1] = INF
    scattered = np.full((2, 80), -INF)
    scattered[:, ids] = compact
    ours = DeviceKernels(support, Columns(ids, 80)).propose_batch(torch.from_numpy(compact), [sampling] * 2)
    theirs = DeviceKernels(support).propose_batch(torch.from_numpy(scattered), [sampling] * 2)
    for left, right in zip(map(sound, ours), map(sound, theirs), strict=True):
        assert (left.row and shown(left.row)) == (right.row and shown(right.row))
        assert left.entropy == pytest.approx(right.entropy, abs=1e-12)


@pytest.mark.parametrize("ids", [[2, 1], [1, 1], [-1, 2], [0, 5]], ids=str)
def test_columns_must_be_ids_in_order(ids: list[int]) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        Columns(np.array(ids, dtype=np.int64), 5)
    assert refusal.value.param == "columns"
