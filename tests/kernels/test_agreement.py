"""Torch against numpy on whatever hypothesis can think of: ties, bans, infinities, huge ranges, tiny vocabularies."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from adasd.core.draws import CounterDraws, DrawKey, Purpose
from adasd.core.rows import SPARSE_TOTAL
from adasd.core.types import FloatArray, Row, SamplingParams
from tests.kernels.backends import DEVICE, HOST, Backend, block, target_probabilities

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)

VALUES = st.one_of(
    st.sampled_from([0.0, -0.0, 1.0, 2.5, -3.0]),
    st.floats(-20.0, 20.0, width=16),
    st.floats(-1e4, 1e4, width=32),
    st.sampled_from([-math.inf, 3e38, -3e38, 6e4, 1e-45]),
)
LOGITS = st.lists(st.one_of(VALUES, VALUES, VALUES, VALUES, st.just(math.inf)), min_size=1, max_size=12)
SAMPLING = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 1e-310, 1e-3, 0.3, 0.7, 1.0, 1.6, 1e6]),
    top_k=st.integers(0, 14),
    top_p=st.sampled_from([1e-12, 0.1, 0.3, 0.5, 0.9, 0.999, 1.0 - 1e-12, 1.0]),
    min_p=st.sampled_from([0.0, 0.0, 1e-9, 0.05, 0.5, 1.0]),
)


def pair(dtype: torch.dtype) -> tuple[Backend, Backend]:
    return replace(HOST, dtype=dtype), replace(DEVICE, dtype=dtype)


def finite(logits: list[float], dtype: torch.dtype) -> FloatArray:
    """The logits, if the dtype leaves them a peak above -inf."""
    array = np.array(logits)
    assume(torch.tensor(logits, dtype=torch.float64).to(dtype).amax() > -math.inf)
    return array


def weights(row: Row, vocabulary: int) -> Any:
    """In units of the row's total, or of a sparse total where all is on one id."""
    dense = np.zeros(vocabulary, dtype=np.int64)
    dense[row.ids] = row.weights * (SPARSE_TOTAL if row.total == 1 else 1)
    return dense


def assert_same_row(left: Row | None, right: Row | None, vocabulary: int) -> None:
    assert left is not None
    assert right is not None
    assert left.total == right.total or 1 in (left.total, right.total)
    assert np.abs(weights(left, vocabulary) - weights(right, vocabulary)).max() <= 1
    assert int(right.weights.sum()) == right.total


def quantised(seed: int, vocabulary: int, step: float, scale: float = 1.5) -> FloatArray:
    """Logits in steps, as bfloat16 gives them: many ids tie at every cut."""
    noise = np.random.default_rng(seed).normal(0.0, scale, vocabulary)
    return np.round(noise / step) * step


@given(logits=LOGITS, sampling=SAMPLING, dtype=st.sampled_from(DTYPES))
@settings(max_examples=300, deadline=None)
def test_target(logits: list[float], sampling: SamplingParams, dtype: torch.dtype) -> None:
    array = finite(logits, dtype)
    host, device = (target_probabilities(backend, array, sampling) for backend in pair(dtype))
    np.testing.assert_allclose(device, host, atol=1e-6)
    assert ((device > 0) == (host > 0)).all()


@given(logits=LOGITS, sampling=SAMPLING, dtype=st.sampled_from(DTYPES), support=st.sampled_from([None, 512, 3, 1]))
@settings(max_examples=300, deadline=None)
def test_proposal(logits: list[float], sampling: SamplingParams, dtype: torch.dtype, support: int | None) -> None:
    array = finite(logits, dtype)
    host, device = (backend.propose(array, sampling, support) for backend in pair(dtype))
    assert device.entropy == pytest.approx(host.entropy, abs=1e-6)
    assert_same_row(host.row, device.row, len(array))


@given(
    rows=st.integers(1, 12).flatmap(
        lambda width: st.lists(st.lists(VALUES, min_size=width, max_size=width), min_size=2, max_size=5)
    ),
    sampling=SAMPLING,
    seed=st.integers(0, 2**64 - 1),
    support=st.sampled_from([None, 512, 2]),
    base=st.integers(0, 2**40),
)
@settings(max_examples=100, deadline=None)
def test_round(rows: list[list[float]], sampling: SamplingParams, seed: int, support: int | None, base: int) -> None:
    """A whole block: rows drafted by the host from one half of the logits, judged and emitted by both."""
    logits = np.stack([finite(row, torch.float32) for row in rows])
    draws = CounterDraws(seed)
    drafted = [HOST.propose(row[::-1].copy(), sampling, support).row for row in logits[:-1]]
    proposed = [row for row in drafted if row is not None]
    candidates = block([int(row.ids[np.argmax(row.weights)]) for row in proposed], proposed)
    host, device = (backend.target(logits, sampling) for backend in (HOST, DEVICE))
    for ours, theirs in zip(device.evidence(candidates), host.evidence(candidates), strict=True):
        assert (ours.p, ours.q) == (pytest.approx(theirs.p, abs=1e-6), theirs.q)
        assert ours.p_max == pytest.approx(theirs.p_max, abs=1e-6)
        assert ours.distance**2 == pytest.approx(theirs.distance**2, abs=1e-6)
    for offset, minus in enumerate([*proposed, None]):
        key = DrawKey(base, offset, Purpose.EMIT)
        assert device.emit(offset, None, key, draws) == host.emit(offset, None, key, draws)
        assert device.emit(offset, minus, key, draws) == host.emit(offset, minus, key, draws)
    assert list(device.coupled(base, draws)) == list(host.coupled(base, draws))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "sampling",
    [
        SamplingParams(),
        SamplingParams(temperature=0.0),
        SamplingParams(top_p=0.9),
        SamplingParams(temperature=3.0, top_p=0.97),
        SamplingParams(top_k=300),
        SamplingParams(top_k=700, top_p=0.9),
        SamplingParams(min_p=0.01),
        SamplingParams(temperature=0.8, top_k=50, top_p=0.95, min_p=0.02),
    ],
    ids=["plain", "greedy", "top_p", "wide", "top_k", "top_k+top_p", "min_p", "all"],
)
def test_wide_vocabulary_with_ties(dtype: torch.dtype, sampling: SamplingParams) -> None:
    """Cuts inside, at the edge of and beyond what is ranked first, in one block; ids tie at every one of them."""
    vocabulary = 4800
    logits = np.stack(
        [
            quantised(1, vocabulary, 0.25),
            quantised(2, vocabulary, 0.25, scale=4.0),
            np.zeros(vocabulary),
            np.where(np.arange(vocabulary) % 7 == 0, quantised(3, vocabulary, 0.5), -math.inf),
        ]
    )
    hosts, devices = pair(dtype)
    drafted = [backend.propose(logits[0], sampling).row for backend in (hosts, devices)]
    assert_same_row(*drafted, vocabulary)
    host, device = (backend.target(logits, sampling) for backend in (hosts, devices))
    ids = np.random.default_rng(4).integers(0, vocabulary, 3)
    rows = [backend_row for i in range(3) if (backend_row := hosts.propose(logits[i], SamplingParams(), None).row)]
    for ours, theirs in zip(
        device.evidence(block(ids.tolist(), rows)), host.evidence(block(ids.tolist(), rows)), strict=True
    ):
        assert (ours.p, ours.p_max) == (pytest.approx(theirs.p, abs=1e-9), pytest.approx(theirs.p_max, abs=1e-9))
        assert ours.distance**2 == pytest.approx(theirs.distance**2, abs=1e-6)
    for offset in range(4):
        for base in range(8):
            key = DrawKey(base, offset, Purpose.EMIT)
            assert device.emit(offset, None, key, CounterDraws(5)) == host.emit(offset, None, key, CounterDraws(5))
    assert list(device.coupled(3, CounterDraws(6))) == list(host.coupled(3, CounterDraws(6)))


@given(
    backend=st.sampled_from(pair(torch.float64)),
    shares=st.lists(st.integers(1, 99), min_size=2, max_size=8, unique=True),
    data=st.data(),
)
@settings(max_examples=150, deadline=None)
def test_rounding_decides_no_cut(backend: Backend, shares: list[int], data: st.DataObject) -> None:
    """A mass of exactly top_p has reached it, a share of exactly min_p is kept, however logarithms and sums round."""
    shares.sort(reverse=True)
    logits, last = np.log(shares), data.draw(st.integers(0, len(shares) - 1))
    top_p, min_p = sum(shares[: last + 1]) / sum(shares), shares[last] / shares[0]
    for sampling in (SamplingParams(top_p=top_p), SamplingParams(min_p=min_p)):
        found = target_probabilities(backend, logits, sampling)
        assert np.flatnonzero(found).tolist() == list(range(last + 1))
        row = backend.propose(logits, sampling).row
        assert row is not None
        assert row.ids.tolist() == list(range(last + 1))


@pytest.mark.parametrize("support", [3, 64, 512])
def test_ties_at_the_edge_of_the_support(support: int) -> None:
    for seed in range(20):
        logits = quantised(seed, 1500, 0.5)
        for sampling in (SamplingParams(), SamplingParams(top_p=0.8), SamplingParams(top_k=40)):
            assert_same_row(*(b.propose(logits, sampling, support).row for b in (HOST, DEVICE)), 1500)
