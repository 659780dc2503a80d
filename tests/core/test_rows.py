"""Rows: integer weights that lose nothing, and what `check_row` must not let through."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adasd.core.errors import InvalidDraft
from adasd.core.rows import (
    DENSE_TOTAL,
    SPARSE_TOTAL,
    DenseRow,
    PointRow,
    SparseRow,
    check_block,
    check_row,
    dense_row,
    probabilities,
    round_weights,
    sparse_row,
    sparse_rows,
)
from adasd.core.types import Draft, IntArray, Row

SHARES = st.lists(st.one_of(st.just(0.0), st.floats(1e-12, 1.0)), min_size=1, max_size=600).filter(any)
HALF = SPARSE_TOTAL // 2


def ids(*values: int) -> IntArray:
    return np.array(values, dtype=np.int64)


@given(SHARES, st.sampled_from([SPARSE_TOTAL, DENSE_TOTAL]))
def test_rounding(shares: list[float], total: int) -> None:
    """Exact sum, each within 1 of its share, nothing for nothing."""
    p = np.array(shares) / sum(shares)
    weights = round_weights(p, total)
    assert int(weights.sum()) == total
    assert (weights >= 0).all()
    assert not weights[p == 0].any()
    assert np.abs(weights - total * p).max() <= 1.0 + 1e-6


def test_rounding_is_to_the_nearest() -> None:
    assert round_weights(np.array([1.6, SPARSE_TOTAL - 1.6]) / SPARSE_TOTAL, SPARSE_TOTAL).tolist() == [2, 65534]


@pytest.mark.parametrize("excess", [-1e-6, 1e-6])
def test_rounding_forgives_a_sum_that_is_not_quite_1(excess: float) -> None:
    assert round_weights(np.array([0.25, 0.75]) * (1 + excess), DENSE_TOTAL).tolist() == [2**22, 3 * 2**22]


def test_totals_are_those_of_the_wire() -> None:
    assert (SPARSE_TOTAL, DENSE_TOTAL, PointRow(3).total) == (2**16, 2**24, 1)


@given(SHARES, st.randoms(use_true_random=False))
def test_sparse_row(shares: list[float], random: np.random.Generator) -> None:
    """Ids may come in any order; they leave ascending, with positive 16-bit weights, or as a point."""
    order = list(range(10, 10 + len(shares)))
    random.shuffle(order)  # type: ignore[arg-type]
    p = np.array(shares) / sum(shares)
    row = sparse_row(np.array(order), p)
    for token in row.ids:
        check_row(row, int(token), 10 + len(shares))
        assert row.weight(int(token)) / row.total == pytest.approx(p[order.index(token)], abs=1.01 / SPARSE_TOTAL)
    assert isinstance(row, PointRow) == (len(row.ids) == 1)
    assert isinstance(row, PointRow) or int(row.weights.max()) < 2**16
    assert row.weight(9) == row.weight(10 + len(shares)) == row.weight(-1) == 0


def test_rows_side_by_side_are_those_alone() -> None:
    """Ids of probability 0 are left out, wherever they stand and even if listed twice."""
    ids = np.array([[5, 2, 9, 9], [3, 1, 0, 2]])
    first, second = sparse_rows(ids, np.array([[2.0, 5.0, 1.0, 0.0], [0.0, 0.5, 0.0, 0.0]]))
    expected = sparse_row(ids[0, :3], np.array([0.25, 0.625, 0.125]))
    assert (first.ids.tolist(), first.weights.tolist()) == (expected.ids.tolist(), expected.weights.tolist())
    assert second == PointRow(1)


def test_dense_row() -> None:
    row = dense_row(np.array([0.5, 0.0, 0.5]))
    assert (row.ids.tolist(), row.weights.tolist()) == ([0, 1, 2], [2**23, 0, 2**23])
    assert (row.weight(2), row.weight(1), row.weight(3), row.weight(-1)) == (2**23, 0, 0, 0)


def test_point_row() -> None:
    row = PointRow(5)
    assert (row.ids.tolist(), row.weights.tolist(), row.weight(5), row.weight(4)) == ([5], [1], 1, 0)


def test_probabilities() -> None:
    assert probabilities(PointRow(1), 3).tolist() == [0.0, 1.0, 0.0]
    assert probabilities(SparseRow(ids(0, 2), ids(HALF, HALF)), 4).tolist() == [0.5, 0.0, 0.5, 0.0]
    assert probabilities(dense_row(np.array([0.25, 0.75])), 3).tolist() == [0.25, 0.75, 0.0]


@pytest.mark.parametrize(
    ("token", "row", "complaint"),
    [
        (1, SparseRow(ids(0, 2), ids(HALF, HALF)), "probability 0"),
        (1, PointRow(0), "probability 0"),
        (1, DenseRow(ids(2**24, 0)), "probability 0"),
        (0, SparseRow(ids(0, 2), ids(HALF, HALF - 1)), "sum to 65535"),
        (0, SparseRow(ids(0, 1, 2), ids(SPARSE_TOTAL, 1, -1)), "weights"),
        (0, PointRow(0, total=2), "sum to 1"),
        (0, SparseRow(ids(0, 0), ids(HALF, HALF)), "ascend"),
        (0, SparseRow(ids(2, 0), ids(HALF, HALF)), "ascend"),
        (0, SparseRow(ids(0, 3), ids(HALF, HALF)), "ascend"),
        (-1, SparseRow(ids(-1, 0), ids(HALF, HALF)), "ascend"),
        (3, PointRow(3), "ascend"),
        (0, SparseRow(ids(), ids()), "ascend"),
        (0, SparseRow(ids(0, 1), ids(SPARSE_TOTAL)), "2 ids has 1 weights"),
        (0, DenseRow(ids(2**24, 0, 0, 0)), "4 ids"),
    ],
)
def test_unsound_row_is_refused(token: int, row: Row, complaint: str) -> None:
    with pytest.raises(InvalidDraft, match=complaint):
        check_row(row, token, vocabulary=3)


def test_sound_rows_pass() -> None:
    rows: tuple[Row, ...] = (PointRow(2), SparseRow(ids(0, 2), ids(HALF, HALF)), DenseRow(ids(2**23, 2**23)))
    check_block(Draft((2, 0, 1), (0.0,) * 3, rows), vocabulary=3)
    check_block(Draft(), vocabulary=3)


def test_every_candidate_needs_its_row() -> None:
    for rows in ((), (PointRow(0), PointRow(0))):
        with pytest.raises(InvalidDraft, match="1 candidates"):
            check_block(Draft((0,), (0.0,), rows), vocabulary=3)
    with pytest.raises(InvalidDraft, match="probability 0"):
        check_block(Draft((0, 1), (0.0,) * 2, (PointRow(0), PointRow(0))), vocabulary=3)
