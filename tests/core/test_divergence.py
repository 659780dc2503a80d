"""Jensen-Shannon divergence against scipy's values, its bounds, and its short form for sparse rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adasd.core.divergence import js_distance, js_divergence, js_divergence_on_support, js_divergence_sparse
from adasd.core.rows import DENSE_TOTAL, DenseRow, PointRow, SparseRow, round_weights, sparse_row
from adasd.core.types import FloatArray
from tests.golden.cases import golden

DISTRIBUTIONS = st.lists(st.integers(0, 1000), min_size=6, max_size=6).filter(any).map(lambda w: np.array(w) / sum(w))


@pytest.mark.parametrize("case", golden("divergence"))
def test_golden(case: dict[str, Any]) -> None:
    found = js_divergence(np.array(case["p"]), np.array(case["q"]))
    assert found == pytest.approx(case["js_distance"] ** 2, abs=1e-6)
    assert js_distance(found) == pytest.approx(case["js_distance"], abs=1e-6)


@given(DISTRIBUTIONS, DISTRIBUTIONS, DISTRIBUTIONS)
def test_distance_is_a_metric(p: FloatArray, q: FloatArray, r: FloatArray) -> None:
    def distance(left: FloatArray, right: FloatArray) -> float:
        return js_distance(js_divergence(left, right))

    assert distance(p, p) == 0.0
    assert 0.0 <= distance(p, q) <= 1.0
    assert distance(p, q) == pytest.approx(distance(q, p), abs=1e-9)
    assert distance(p, r) <= distance(p, q) + distance(q, r) + 1e-7


def test_disjoint_supports_are_at_distance_one() -> None:
    assert js_divergence(np.array([0.5, 0.5, 0.0]), np.array([0.0, 0.0, 1.0])) == 1.0
    assert js_divergence_sparse(np.array([0.5, 0.5, 0.0]), PointRow(2)) == 1.0


@pytest.mark.parametrize("step", [1e-3, 1e-5, 1e-8])
def test_no_cancellation_where_the_two_are_close(step: float) -> None:
    """To second order D = sum (p - q)^2 / (8 ln 2 m); H(m) - (H(p) + H(q)) / 2 would have lost it to rounding."""
    p, q = np.array([0.5, 0.5]), np.array([0.5 + step, 0.5 - step])
    assert js_divergence(p, q) == pytest.approx(step**2 / (2 * np.log(2)), rel=1e-2, abs=0.0)


@given(DISTRIBUTIONS, DISTRIBUTIONS)
def test_sparse_form_is_exact(p: FloatArray, q: FloatArray) -> None:
    """What p has outside q's support adds half its mass, whatever it looks like there."""
    weights = round_weights(q, DENSE_TOTAL)
    support = np.flatnonzero(weights)
    rounded = weights / DENSE_TOTAL
    expected = pytest.approx(js_divergence(p, rounded), abs=1e-9)
    assert js_divergence_sparse(p, DenseRow(weights)) == expected
    assert js_divergence_sparse(p, SparseRow(support, weights[support], DENSE_TOTAL)) == expected
    assert js_divergence_on_support(p[support], rounded[support]) == expected


def test_sparse_form_of_a_row_as_drafted() -> None:
    row = sparse_row(np.array([3, 0]), np.array([0.25, 0.75]))
    p = np.array([0.5, 0.3, 0.1, 0.1])
    assert js_divergence_sparse(p, row) == pytest.approx(js_divergence(p, np.array([0.75, 0, 0, 0.25])))
