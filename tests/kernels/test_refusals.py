"""What numpy and torch alike must refuse by name: bad numbers from a model, unsound blocks from a drafter."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from adasd.core.errors import InvalidDraft, NumericalFault
from adasd.core.rows import DenseRow, PointRow, SparseRow
from adasd.core.types import Row, SamplingParams
from tests.kernels.backends import Backend, block

GREEDY = SamplingParams(temperature=0.0)
PLAIN = SamplingParams()
INF, NAN = math.inf, math.nan


@pytest.mark.parametrize("sampling", [PLAIN, GREEDY, SamplingParams(top_k=2, top_p=0.5, min_p=0.1)])
@pytest.mark.parametrize("neighbour", [0.0, INF, -INF])
def test_nan_is_named_by_side(backend: Backend, sampling: SamplingParams, neighbour: float) -> None:
    bad = np.array([1.0, NAN, neighbour, 2.0])
    for support in (None, 2):
        with pytest.raises(NumericalFault) as fault:
            backend.propose(bad, sampling, support)
        assert fault.value.side == "draft"
    with pytest.raises(NumericalFault) as fault:
        backend.target(np.stack([np.zeros(4), bad, np.zeros(4)]), sampling)
    assert fault.value.side == "target"


@pytest.mark.parametrize("sampling", [PLAIN, GREEDY, SamplingParams(top_k=2, top_p=0.5, min_p=0.1)])
def test_target_row_without_a_finite_logit_is_refused(backend: Backend, sampling: SamplingParams) -> None:
    with pytest.raises(NumericalFault, match="without a finite logit"):
        backend.target(np.stack([np.zeros(4), np.full(4, -INF)]), sampling)


def ids(*values: int) -> Any:
    return np.array(values, dtype=np.int64)


BAD_ROWS: dict[str, tuple[int, Row]] = {
    "q(x) = 0": (1, SparseRow(ids(0, 2), ids(2**15, 2**15))),
    "q(x) = 0, point": (1, PointRow(2)),
    "q(x) = 0, dense": (1, DenseRow(ids(2**23, 0, 2**23))),
    "wrong sum": (0, SparseRow(ids(0, 2), ids(2**15, 2**15 + 1))),
    "negative weight": (0, SparseRow(ids(0, 1, 2), ids(2**16, -5, 5))),
    "repeated id": (0, SparseRow(ids(0, 0), ids(2**15, 2**15))),
    "descending ids": (0, SparseRow(ids(2, 0), ids(2**15, 2**15))),
    "foreign id": (0, SparseRow(ids(0, 3), ids(2**15, 2**15))),
    "foreign point": (3, PointRow(3)),
    "negative id": (-1, PointRow(-1)),
    "too wide": (0, DenseRow(ids(2**24, 0, 0, 0))),
    "empty": (0, SparseRow(ids(), ids())),
    "ids without weights": (0, SparseRow(ids(0, 2), ids(2**16))),
}


@pytest.mark.parametrize("sampling", [PLAIN, GREEDY])
@pytest.mark.parametrize("name", BAD_ROWS)
def test_unsound_row_is_refused(backend: Backend, sampling: SamplingParams, name: str) -> None:
    token, row = BAD_ROWS[name]
    target = backend.target(np.zeros((3, 3)), sampling)
    with pytest.raises(InvalidDraft):
        target.evidence(block([0, token], [PointRow(0), row]))


@pytest.mark.parametrize("sampling", [PLAIN, GREEDY])
def test_candidate_without_a_row_is_refused(backend: Backend, sampling: SamplingParams) -> None:
    with pytest.raises(InvalidDraft):
        backend.target(np.zeros((3, 3)), sampling).evidence(block([0, 1], [PointRow(0)]))
