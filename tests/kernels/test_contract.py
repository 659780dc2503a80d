"""What `adasd.core.backend` promises, asked of numpy and of torch alike (refusals: test_refusals.py)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy.stats import chisquare

from adasd.core.divergence import js_divergence
from adasd.core.draws import CounterDraws, DrawKey, Purpose
from adasd.core.rows import DenseRow, PointRow, SparseRow, probabilities, round_weights, sparse_row
from adasd.core.sampling import warp
from adasd.core.types import Draft, FloatArray, Row, SamplingParams
from tests.golden.cases import golden
from tests.kernels.backends import Backend, FixedDraws, block, emitted, target_probabilities

FINE = 2**40
"""Weights this fine round a golden distribution by less than its tolerance."""

GREEDY = SamplingParams(temperature=0.0)
PLAIN = SamplingParams()
INF = math.inf
KEY = DrawKey(7, 0, Purpose.EMIT)
LOWEST, HIGHEST = 2.0**-54, 1.0 - 2.0**-53


def log(distribution: FloatArray) -> FloatArray:
    with np.errstate(divide="ignore"):
        return np.log(distribution)


def one_row(backend: Backend, p: FloatArray) -> Any:
    return backend.target(log(p)[None], PLAIN)


# Distributions


@pytest.mark.parametrize("case", golden("warping"))
def test_warping_is_that_of_transformers(backend: Backend, case: dict[str, Any]) -> None:
    sampling = SamplingParams(case["temperature"], case["top_k"], case["top_p"], case["min_p"])
    found = target_probabilities(backend, np.array(case["logits"]), sampling)
    np.testing.assert_allclose(found, case["probs"], atol=1e-6)
    assert not found[np.array(case["probs"]) == 0.0].any()


@pytest.mark.parametrize("case", golden("divergence"))
def test_distance_and_overlap_are_those_of_scipy(backend: Backend, case: dict[str, Any]) -> None:
    p, q = np.array(case["p"]), np.array(case["q"])
    dense = DenseRow(round_weights(q, FINE), FINE)
    ids = np.flatnonzero(dense.weights)
    sparse = SparseRow(ids, dense.weights[ids], FINE)
    for row in (dense, sparse):
        target = backend.target(np.tile(log(p), (len(ids) + 1, 1)), PLAIN)
        evidence = list(target.evidence(block(ids.tolist(), [row] * len(ids))))
        np.testing.assert_allclose([e.distance**2 for e in evidence], case["js_distance"] ** 2, atol=1e-6)
        assert sum(min(e.p, e.q) for e in evidence) == pytest.approx(case["accept_rate"], abs=1e-6)
        np.testing.assert_allclose([e.p_max for e in evidence], p.max(), atol=1e-6)


@pytest.mark.parametrize("case", golden("divergence"))
def test_entropy_is_that_of_scipy(backend: Backend, case: dict[str, Any]) -> None:
    for side in ("p", "q"):
        found = backend.propose(log(np.array(case[side])), PLAIN).entropy
        assert found == pytest.approx(case[f"entropy_{side}_bits"], abs=1e-6)


def test_entropy_is_of_the_untruncated_softmax_at_the_requests_temperature(backend: Backend) -> None:
    logits = np.array([2.0, 1.0, 0.0, -INF, -1.0])
    plain = backend.propose(logits, PLAIN).entropy
    assert backend.propose(logits, GREEDY).entropy == pytest.approx(plain)
    assert backend.propose(logits, SamplingParams(top_k=1)).entropy == pytest.approx(plain)
    assert backend.propose(logits, SamplingParams(temperature=1e6)).entropy == pytest.approx(2.0)


def test_greedy_takes_the_lowest_of_equals(backend: Backend) -> None:
    logits = np.array([0.0, 3.0, -INF, 3.0])
    target = backend.target(logits[None], GREEDY)
    assert backend.propose(logits, GREEDY).row == PointRow(1)
    assert target.emit(0, None, KEY, CounterDraws(1)) == 1
    assert target.emit(0, PointRow(1), KEY, CounterDraws(1)) == 1
    assert target.emit(0, PointRow(3), KEY, CounterDraws(1)) == 1
    assert list(target.coupled(0, CounterDraws(1))) == [1]


def test_greedy_evidence(backend: Backend) -> None:
    target = backend.target(np.tile([0.0, 3.0, 1.0], (4, 1)), GREEDY)
    half = SparseRow(np.array([1, 2]), np.array([2**15, 2**15]))
    same, other, mixed = target.evidence(block([1, 0, 2], [PointRow(1), PointRow(0), half]))
    assert (same.p, same.q, same.p_max, same.distance) == (1.0, 1.0, 1.0, 0.0)
    assert (other.p, other.q, other.p_max, other.distance) == (0.0, 1.0, 1.0, 1.0)
    assert (mixed.p, mixed.q) == (0.0, 0.5)
    assert mixed.distance**2 == pytest.approx(js_divergence(np.array([0, 1.0, 0]), np.array([0, 0.5, 0.5])))


def test_top_p_cuts_among_equals_by_id(backend: Backend) -> None:
    """As transformers does: of equals the higher id goes first. 3 x 0.1 reaches 0.3 although 0.1 + 0.1 + 0.1 > 0.3."""
    found = target_probabilities(backend, np.zeros(10), SamplingParams(top_p=0.3))
    np.testing.assert_allclose(found, [0.0] * 7 + [1 / 3] * 3)


def test_top_k_keeps_ties(backend: Backend) -> None:
    found = target_probabilities(backend, np.array([1.0, 2.0, 1.0, 0.0]), SamplingParams(top_k=2))
    assert (found > 0).tolist() == [True, True, True, False]


def test_min_p_keeps_an_id_at_the_limit(backend: Backend) -> None:
    found = target_probabilities(backend, np.array([-1.1, 0.0, -3.0, -1.0]), SamplingParams(min_p=math.exp(-1.0)))
    assert (found > 0).tolist() == [False, True, False, True]


def test_infinite_logits_share_all_mass(backend: Backend) -> None:
    logits = np.array([INF, 1.0, INF, -INF])
    for sampling in (PLAIN, SamplingParams(top_k=3, top_p=0.99, min_p=0.1)):
        np.testing.assert_allclose(target_probabilities(backend, logits, sampling), [0.5, 0.0, 0.5, 0.0])
    proposal = backend.propose(logits, PLAIN)
    assert proposal.entropy == pytest.approx(1.0)
    assert probabilities(proposal.row, 4).tolist() == [0.5, 0.0, 0.5, 0.0]
    assert backend.propose(logits, GREEDY).row == PointRow(0)


@pytest.mark.parametrize("logits", [[3.0, 5.0, 4.0], [-5.0, -3.0, -4.0], [-3e38, 3e38, 0.0]])
def test_a_tiny_temperature_is_greedy(backend: Backend, logits: list[float]) -> None:
    """Dividing first would overflow: all positive logits to +inf, or all negative ones to -inf."""
    sampling = SamplingParams(temperature=1e-310)
    assert target_probabilities(backend, np.array(logits), sampling).tolist() == [0.0, 1.0, 0.0]
    assert backend.propose(np.array(logits), sampling).row == PointRow(1)


# Draft rows


@pytest.mark.parametrize("support", [None, 512, 20, 3])
@pytest.mark.parametrize(
    "sampling",
    [
        PLAIN,
        SamplingParams(top_k=7),
        SamplingParams(top_p=0.8),
        SamplingParams(temperature=0.6, top_k=30, top_p=0.95, min_p=0.02),
    ],
    ids=["plain", "top_k", "top_p", "all"],
)
def test_row_is_the_warped_distribution(backend: Backend, support: int | None, sampling: SamplingParams) -> None:
    """Exact sum, nothing outside what sampling and the support keep, each weight within rounding of its share."""
    logits = np.random.default_rng(3).normal(0.0, 1.2, 60)
    logits[::4] = -INF
    q = warp(logits.astype(np.float32).astype(np.float64), sampling)
    if support is not None:
        q[np.argsort(-q)[support:]] = 0.0
        q /= q.sum()
    row = backend.propose(logits, sampling, support).row
    assert row is not None
    assert int(row.weights.sum()) == row.total == (2**24 if support is None else 2**16)
    found = probabilities(row, 60)
    assert not found[q == 0.0].any()
    np.testing.assert_allclose(found, q, atol=1.01 / row.total)


@pytest.mark.parametrize("support", [None, 512])
def test_one_id_left_is_a_point(backend: Backend, support: int | None) -> None:
    assert backend.propose(np.array([-INF, 0.5, -INF]), PLAIN, support).row == PointRow(1)
    assert backend.propose(np.array([0.1, 0.5, 0.2]), SamplingParams(top_k=1), support).row == PointRow(1)


@pytest.mark.parametrize("sampling", [PLAIN, GREEDY, SamplingParams(top_k=2, top_p=0.5)])
@pytest.mark.parametrize("support", [None, 512])
def test_masks_that_leave_nothing_end_the_block(
    backend: Backend, sampling: SamplingParams, support: int | None
) -> None:
    assert backend.propose(np.full(5, -INF), sampling, support) == (0.0, None)


# Evidence, emission, coupling


def ids(*values: int) -> Any:
    return np.array(values, dtype=np.int64)


@pytest.mark.parametrize("sampling", [PLAIN, GREEDY])
def test_a_block_without_candidates_has_no_evidence(backend: Backend, sampling: SamplingParams) -> None:
    assert list(backend.target(np.zeros((1, 3)), sampling).evidence(Draft())) == []


def test_rows_of_every_kind_in_one_block(backend: Backend) -> None:
    rng = np.random.default_rng(5)
    logits = rng.normal(0.0, 2.0, (5, 30))
    logits[:, 0] = 3.0  # likely, so that padding with id 0 would show
    rows: list[Row] = [
        PointRow(4),
        sparse_row(ids(2, 9, 11), np.array([0.2, 0.5, 0.3])),
        DenseRow(round_weights(rng.dirichlet(np.ones(30)), 2**24)),
        sparse_row(np.arange(29, 9, -1), rng.dirichlet(np.ones(20))),
    ]
    candidates = [4, 11, 0, 29]
    found = list(backend.target(logits, SamplingParams(top_p=0.95)).evidence(block(candidates, rows)))
    assert len(found) == 4
    for evidence, token, row, logit in zip(found, candidates, rows, logits, strict=False):
        p, q = warp(logit.astype(np.float32).astype(np.float64), SamplingParams(top_p=0.95)), probabilities(row, 30)
        assert (evidence.p, evidence.q) == (pytest.approx(p[token], abs=1e-9), q[token])
        assert evidence.p_max == pytest.approx(p.max())
        assert evidence.distance**2 == pytest.approx(js_divergence(p, q), abs=1e-9)


def test_emission_never_has_probability_zero(backend: Backend) -> None:
    """At both ends of the uniform's range, with zeros at both ends of the row."""
    p = np.array([0.0, 0.25, 0.0, 0.5, 0.25, 0.0])
    target = one_row(backend, p)
    ends = [target.emit(0, None, KEY, FixedDraws(0, value=value)) for value in (LOWEST, HIGHEST)]
    assert ends == [1, 4]
    minus = sparse_row(ids(1, 3), np.array([0.125, 0.875]))
    ends = [target.emit(0, minus, KEY, FixedDraws(0, value=value)) for value in (LOWEST, HIGHEST)]
    assert ends == [1, 4]


def test_emission_falls_back_to_p_where_the_residual_is_empty(backend: Backend) -> None:
    target = one_row(backend, np.array([0.5, 0.0, 0.5]))
    minus = sparse_row(ids(0, 2), np.array([0.5, 0.5]))
    assert [target.emit(0, minus, KEY, FixedDraws(0, value=value)) for value in (0.4, 0.6)] == [0, 2]


def test_emission_follows_the_row(backend: Backend) -> None:
    p = np.array([0.1, 0.3, 0.05, 0.35, 0.2])
    counts = np.bincount(emitted(one_row(backend, p), None, 3000, seed=1), minlength=5)
    assert chisquare(counts, p * 3000).pvalue > 1e-3


def test_emission_after_a_rejection_follows_the_residual(backend: Backend) -> None:
    p, q = np.array([0.1, 0.3, 0.05, 0.35, 0.2]), np.array([0.4, 0.1, 0.05, 0.1, 0.35])
    minus = DenseRow(round_weights(q, 2**24))
    counts = np.bincount(emitted(one_row(backend, p), minus, 3000, seed=2), minlength=5)
    assert counts[[0, 2, 4]].sum() <= 1  # id 2 is equal up to rounding
    residual = np.array([0.2, 0.25]) / 0.45
    assert chisquare(counts[[1, 3]], residual * counts[[1, 3]].sum()).pvalue > 1e-3


@pytest.mark.parametrize("sampling", [PLAIN, SamplingParams(top_p=0.8)], ids=["plain", "top_p"])
def test_coupled_tokens_follow_the_row(backend: Backend, sampling: SamplingParams) -> None:
    logits = log(np.array([0.1, 0.3, 0.05, 0.35, 0.2]))
    p = warp(logits, sampling)
    tokens = backend.target(np.tile(logits, (4000, 1)), sampling).coupled(11, CounterDraws(3))
    counts = np.bincount(tokens, minlength=5)
    assert not counts[p == 0].any()
    assert chisquare(counts[p > 0], p[p > 0] * 4000).pvalue > 1e-3


def test_coupled_token_depends_on_position_only(backend: Backend) -> None:
    logits = np.random.default_rng(2).normal(size=(6, 50))
    together = list(backend.target(logits, PLAIN).coupled(40, CounterDraws(9)))
    alone = [backend.target(logits[i : i + 1], PLAIN).coupled(40 + i, CounterDraws(9))[0] for i in range(6)]
    assert together == alone
