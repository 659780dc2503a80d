"""Work that the threads of torch's products share: every item once, whoever takes it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numba
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from adasd.kernels import team
from adasd.kernels.team import FIRST, ITEMS, Order, Program, Shared, pointer, taken
from tests.threads import threads_of_torch


@Shared
def _add_one(address: int) -> None:
    what = numba.carray(pointer(address), FIRST + 1, np.int64)
    counts = numba.carray(pointer(what[FIRST]), what[ITEMS], np.int64)
    item = taken(address)
    while item < what[ITEMS]:
        for _ in range(1000):  # long enough for another thread to come by
            counts[item] += 1
        item = taken(address)


@Shared
def _add_all(address: int) -> None:
    """The sum of all numbers so far, to every number: wrong if any thread begins before the others have ended."""
    what = numba.carray(pointer(address), FIRST + 2, np.int64)
    given = numba.carray(pointer(what[FIRST]), what[ITEMS], np.int64)
    made = numba.carray(pointer(what[FIRST + 1]), what[ITEMS], np.int64)
    item = taken(address)
    while item < what[ITEMS]:
        made[item] = given.sum() % 1000 + item
        item = taken(address)


def counted(items: int, times: int) -> NDArray[np.int64]:
    counts = np.zeros(items, dtype=np.int64)
    order = Order(items, counts.ctypes.data)
    for _ in range(times):
        _add_one(order)
    return counts


@pytest.mark.parametrize("number", [1, 2, 5])
@pytest.mark.parametrize("items", [0, 1, 3, 200])
def test_every_item_is_taken_once(items: int, number: int) -> None:
    with threads_of_torch(number):
        assert (counted(items, 50) == 50_000).all()


def test_without_openmp_the_caller_does_it_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(team, "_parallel", None)
    assert (counted(7, 3) == 3000).all()


def test_orders_of_several_callers_stay_apart() -> None:
    with ThreadPoolExecutor(4) as pool:
        for counts in pool.map(lambda items: counted(items, 20), [1, 5, 40, 160]):
            assert (counts == 20_000).all()


def chained(steps: int, runs: list[tuple[int, int]]) -> NDArray[np.int64]:
    """Numbers that each step makes of those of the step before."""
    numbers = np.zeros((steps + 1, 40), dtype=np.int64)
    numbers[0] = np.arange(40)
    places = [row.ctypes.data for row in numbers]
    program = Program([(_add_all, (40, places[step], places[step + 1])) for step in range(steps)])
    for _ in range(20):
        numbers[1:] = 0
        for first, last in runs:
            program.run(first, last)
    return numbers


@pytest.mark.parametrize("number", [1, 2, 5])
@pytest.mark.parametrize("runs", [[(0, 30)], [(0, 7), (7, 8), (8, 30)], [(0, 12)], []])
def test_a_step_begins_when_all_threads_have_done_the_one_before(number: int, runs: list[tuple[int, int]]) -> None:
    done = runs[-1][1] if runs else 0
    expected = [np.arange(40)]
    for _ in range(done):
        expected.append(expected[-1].sum() % 1000 + np.arange(40))
    expected += [np.zeros(40, dtype=np.int64)] * (30 - done)
    with threads_of_torch(number):
        assert (chained(30, runs) == expected).all()


def test_without_openmp_the_caller_runs_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    shared = chained(9, [(0, 9)])
    monkeypatch.setattr(team, "_parallel", None)
    assert (chained(9, [(0, 9)]) == shared).all()


@pytest.mark.skipif(not torch.backends.openmp.is_available(), reason="torch has no OpenMP here")
def test_torch_brings_the_threads() -> None:
    """Where this fails loops run on one thread of several: right, and slower than they could be."""
    assert team._parallel is not None
