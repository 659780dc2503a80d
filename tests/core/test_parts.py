"""A long block in two passes: where that is expected to take less time, and by how much it does."""

from __future__ import annotations

import random

import pytest

from adasd.core.parts import LEAST_SAVING, first_part

STEEP = (19.4, 20.9, 21.3, 25.3, 38.0, 75.0)
"""Two AVX2 cores, SmolLM2-135M: ms."""


def seconds(rows: int, passes: tuple[float, ...]) -> float:
    """Between numbers of rows that were measured in a straight line."""
    power = min(max((rows - 1).bit_length() - 1, 0), len(passes) - 2)
    low, high = 1 << power, 2 << power
    return passes[power] + (passes[power + 1] - passes[power]) * min(1.0, (rows - low) / (high - low))


def expected(first: int, candidates: int, acceptance: float, passes: tuple[float, ...]) -> float:
    """Of reading the first ones and, if they stand, the others, from the last of these on."""
    if first == candidates:
        return seconds(candidates + 1, passes)
    return seconds(first + 1, passes) + acceptance**first * seconds(candidates - first + 1, passes)


@pytest.mark.parametrize("acceptance", [0.0, 0.2, 0.5, 0.8, 0.95, 1.0])
@pytest.mark.parametrize("candidates", [1, 2, 3, 5, 8, 13, 20, 31])
def test_no_other_first_part_takes_less_time(candidates: int, acceptance: float) -> None:
    first = first_part(candidates, acceptance, STEEP)
    times = {m: expected(m, candidates, acceptance, STEEP) for m in range(1, candidates + 1)}
    best, whole = min(times.values()), times[candidates]
    if first == candidates:
        assert best >= (1.0 - LEAST_SAVING) * whole
    else:
        assert times[first] == pytest.approx(best)
        assert best < (1.0 - LEAST_SAVING) * whole


def test_a_first_block_of_twenty_is_read_in_half_the_time() -> None:
    first = first_part(20, 0.5, STEEP)
    assert 3 <= first <= 7
    rng, spent = random.Random(0), 0.0
    for _ in range(2000):
        stand = next((place for place in range(20) if rng.random() >= 0.3), 20)
        spent += seconds(first + 1, STEEP) + (seconds(21 - first, STEEP) if stand >= first else 0.0)
    assert spent / 2000 < 0.6 * seconds(21, STEEP)


@pytest.mark.parametrize("passes", [(), (20.0,) * 6, (20.0, 20.4, 19.8, 20.2, 20.6, 20.9)])
def test_where_rows_cost_nothing_or_nobody_measured_a_block_is_read_in_one(passes: tuple[float, ...]) -> None:
    for candidates in (1, 2, 5, 20, 31):
        for acceptance in (0.0, 0.5, 0.9):
            assert first_part(candidates, acceptance, passes) == candidates


def test_blocks_past_what_was_measured_are_thought_no_dearer() -> None:
    assert first_part(20, 0.5, (1.0, 1.0)) == 20
    assert first_part(60, 0.5, (1.0, 1.0, 4.0)) < 60


def test_a_block_that_will_stand_is_read_in_one() -> None:
    for candidates in (5, 20, 31):
        assert first_part(candidates, 1.0, STEEP) == candidates
