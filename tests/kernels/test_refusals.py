"""What numpy and torch alike must refuse by name: bad numbers from a model."""

from __future__ import annotations

import math

import numpy as np
import pytest

from adasd.core.errors import NumericalFault
from adasd.core.types import SamplingParams
from tests.kernels.backends import Backend

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
