"""Draft rows by the compiled loops: entropies and entries as defined, to the last bit the same in whatever company."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest

from adasd.core.host import HostKernels
from adasd.core.types import FloatArray, SamplingParams
from adasd.kernels.entries import Entries, entries
from tests.threads import threads_of_torch

SAMPLING = SamplingParams(temperature=0.7)


@pytest.fixture(params=[1, 2, 3], autouse=True)
def threads(request: pytest.FixtureRequest) -> Iterator[None]:
    with threads_of_torch(request.param):
        yield


def rows(count: int, width: int) -> FloatArray:
    return np.random.default_rng(width).normal(size=(count, width)) * 5


def row(found: Entries, index: int) -> tuple[list[int], list[int]]:
    count = found.counts[index]
    return found.ids[index, :count].tolist(), found.weights[index, :count].tolist()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("width", "support"), [(1, 4), (5, 5), (700, 1), (700, 128), (3000, 40)])
def test_rows_are_those_of_the_reference(width: int, support: int, dtype: type) -> None:
    logits = rows(9, width).astype(dtype)
    found, reference = entries(logits, 0.7, support), HostKernels(support)
    for index, given in enumerate(logits):
        expected = reference.propose(given, SAMPLING)
        assert expected.row is not None
        assert row(found, index) == (
            expected.row.ids.tolist(),
            (expected.row.weights * 65536 // expected.row.total).tolist(),
        )
        assert found.peaks[index] == given.max()
        assert found.entropies[index] == pytest.approx(expected.entropy, rel=1e-9, abs=1e-9)


def test_columns_stand_for_ids() -> None:
    logits, columns = rows(3, 50), np.arange(50) * 3 + 7
    named, plain = entries(logits, 0.7, 8, columns), entries(logits, 0.7, 8)
    for index in range(3):
        ids, weights = row(plain, index)
        assert row(named, index) == (columns[ids].tolist(), weights)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_row_is_its_own_whoever_is_there_and_however_it_lies(dtype: type) -> None:
    logits = rows(7, 1300).astype(dtype)
    for given in (logits, np.asfortranarray(logits)):
        together = entries(given, 0.7, 60)
        for index in range(7):
            alone = entries(logits[index : index + 1], 0.7, 60)
            assert row(together, index) == row(alone, 0)
            assert (together.peaks[index], together.entropies[index]) == (alone.peaks[0], alone.entropies[0])


@pytest.mark.parametrize("fault", [math.nan, math.inf])
def test_a_fault_is_told_and_spoils_no_other_row(fault: float) -> None:
    logits = rows(3, 90)
    whole = entries(logits, 0.7, 10)
    logits[1, 40] = fault
    found = entries(logits, 0.7, 10)
    np.testing.assert_array_equal(found.peaks[1], fault)
    assert found.counts[1] == 0
    for index in (0, 2):
        assert row(found, index) == row(whole, index)


def test_of_nothing_that_can_be_drawn_there_are_no_entries() -> None:
    found = entries(np.full((1, 20), -math.inf), 0.7, 10)
    assert found.peaks[0] == -math.inf
    assert found.counts[0] == 0
