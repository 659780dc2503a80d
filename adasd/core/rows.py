"""Rows: the exact distribution a candidate was sampled from, rounded to integer weights with a fixed sum.

What is sampled from is what is sent, so nothing is lost on the wire: both sides use q = weights / total.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from adasd.core.errors import InvalidDraft
from adasd.core.types import Draft, FloatArray, IntArray, Row

SPARSE_TOTAL = 2**16
DENSE_TOTAL = 2**24


@dataclass(frozen=True)
class PointRow:
    """All mass on one token: greedy and coupled drafting."""

    token: int
    total: int = 1

    @property
    def ids(self) -> IntArray:
        return np.array([self.token], dtype=np.int64)

    @property
    def weights(self) -> IntArray:
        return np.array([1], dtype=np.int64)

    def weight(self, token: int) -> int:
        return int(token == self.token)


def copied_block(ids: Sequence[int]) -> Draft:
    """A block of candidates that were not drawn but copied: each was certain."""
    return Draft(tuple(ids), (0.0,) * len(ids), tuple(map(PointRow, ids)), copied=True)


@dataclass(frozen=True, eq=False)
class SparseRow:
    """A few ids with 16-bit weights that sum to 2^16."""

    ids: IntArray
    weights: IntArray
    total: int = SPARSE_TOTAL

    def weight(self, token: int) -> int:
        index = int(np.searchsorted(self.ids, token))
        found = index < len(self.ids) and self.ids[index] == token
        return int(self.weights[index]) if found else 0


@dataclass(frozen=True, eq=False)
class DenseRow:
    """The whole vocabulary, weights that sum to 2^24."""

    weights: IntArray
    total: int = DENSE_TOTAL

    @cached_property
    def ids(self) -> IntArray:
        return np.arange(len(self.weights), dtype=np.int64)

    def weight(self, token: int) -> int:
        return int(self.weights[token]) if 0 <= token < len(self.weights) else 0


def round_weights(probabilities: FloatArray, total: int) -> IntArray:
    """Integer weights with the given sum, each within 1 of total * probability; probability 0 keeps weight 0.

    Rounds the cumulative sum, so no sort and no remainder to distribute. probabilities: [..., k], >= 0, each row in
    units of its own sum.
    """
    cumulative = np.cumsum(probabilities, axis=-1)
    steps: IntArray = np.floor(cumulative * (total / cumulative[..., -1:]) + 0.5).astype(np.int64)
    steps[..., 1:] -= steps[..., :-1]
    return steps


def sparse_row(ids: IntArray, probabilities: FloatArray) -> Row:
    """The sparse row of some ids (any order) and their probabilities; a point row if one id takes it all."""
    return sparse_rows(ids[None], probabilities[None])[0]


def sparse_rows(ids: IntArray, probabilities: FloatArray) -> list[Row]:
    """`sparse_row` of n rows side by side; an id of probability 0 is left out. ids, probabilities: [n, k]."""
    sorted_places = np.arange(len(ids))[:, None], np.argsort(ids, axis=-1)
    weights = round_weights(probabilities[sorted_places], SPARSE_TOTAL)
    return [_positive(row, shares) for row, shares in zip(ids[sorted_places], weights, strict=True)]


def _positive(ids: IntArray, weights: IntArray) -> Row:
    kept = weights.nonzero()[0]
    ids, weights = ids[kept].astype(np.int64), weights[kept]
    return PointRow(int(ids[0])) if len(ids) == 1 else SparseRow(ids, weights)


def dense_row(probabilities: FloatArray) -> Row:
    """The dense row of a distribution over the whole vocabulary, [V]."""
    return DenseRow(round_weights(probabilities, DENSE_TOTAL))


def probabilities(row: Row, vocabulary: int) -> FloatArray:
    """The row as a dense distribution, float64 [vocabulary]."""
    dense = np.zeros(vocabulary, dtype=np.float64)
    dense[row.ids] = row.weights / row.total
    return dense


def check_block(draft: Draft, vocabulary: int) -> None:
    """Refuse a block that breaks the contract of `Draft`: one sound row a candidate."""
    if len(draft.rows) != len(draft):
        raise InvalidDraft(f"{len(draft)} candidates came with {len(draft.rows)} rows")
    for token, row in zip(draft.ids, draft.rows, strict=True):
        check_row(row, token, vocabulary)


def check_row(row: Row, token: int, vocabulary: int) -> None:
    """Refuse a row that breaks the contract: wrong sum, repeated or foreign ids, q(token) = 0."""
    if isinstance(row, DenseRow) and len(row.weights) > vocabulary:
        raise InvalidDraft(f"dense row over {len(row.weights)} ids, vocabulary has {vocabulary}")
    ids, weights = row.ids, row.weights
    if len(ids) != len(weights):
        raise InvalidDraft(f"row of {len(ids)} ids has {len(weights)} weights")
    if len(ids) == 0 or ids[0] < 0 or ids[-1] >= vocabulary or (ids[1:] <= ids[:-1]).any():
        raise InvalidDraft(f"row ids must ascend strictly within [0, {vocabulary})")
    total = int(weights.sum())
    if weights.min() < 0 or total != row.total:
        raise InvalidDraft(f"row weights sum to {total}, not {row.total}")
    if row.weight(token) == 0:
        raise InvalidDraft(f"candidate {token} has probability 0 in its own row")
