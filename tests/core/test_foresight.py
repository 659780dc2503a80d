"""What a text foresees of itself, and how it learns how often that comes true."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adasd.core.context import Context
from adasd.core.foresight import CLASSES, FULL, LONGEST, SHORTEST, Foresight, foresee
from adasd.core.types import Foreseen


def one_by_one(ids: Sequence[int], most: int) -> Foreseen | None:
    """The same by the definition: every earlier place, compared token by token."""
    best, matched = None, SHORTEST - 1
    for start in range(1, len(ids)):
        length = 0
        while length < min(start, LONGEST) and ids[start - 1 - length] == ids[-1 - length]:
            length += 1
        if length >= max(matched, SHORTEST):
            best, matched = start, length
    return None if best is None else Foreseen(tuple(ids[best : best + most]), matched)


@settings(deadline=None, max_examples=300)
@given(st.lists(st.integers(0, 2), max_size=60), st.integers(1, 8))
def test_it_is_the_latest_of_the_longest_matches(ids: list[int], most: int) -> None:
    assert foresee(Context(ids).array, most) == one_by_one(ids, most)


@pytest.mark.parametrize(
    ("ids", "most", "expected"),
    [
        ([], 5, None),
        ([7, 7], 5, None),
        ([7, 7, 7], 5, Foreseen((7,), 2)),
        ([1, 2, 3, 1, 2], 5, Foreseen((3, 1, 2), 2)),
        ([1, 2, 3, 1, 2], 1, Foreseen((3,), 2)),
        ([1, 2, 3, 1, 2], 0, None),
        ([1, 2, 3, 9, 2], 5, None),
        ([5, 1, 2, 3, 6, 1, 2, 4, 5, 1, 2], 1, Foreseen((3,), 3)),
        ([1, 2, 3, 6, 1, 2, 4, 5, 1, 2], 1, Foreseen((4,), 2)),
    ],
)
def test_cases(ids: list[int], most: int, expected: Foreseen | None) -> None:
    assert foresee(np.array(ids, dtype=np.uint32), most) == expected


def test_a_growing_context_is_seen_as_it_is() -> None:
    context = Context([1, 2, 3])
    seen = context.array
    for token in range(100):
        context.extend([token, 4])
        assert context.array.tolist() == context.ids
    assert seen.tolist() == [1, 2, 3]


def test_it_learns_from_what_comes_by_the_length_of_the_match() -> None:
    unknown = Foresight()
    assert unknown.chance(2) < unknown.chance(3) < unknown.chance(8) == unknown.chance(LONGEST)
    foreseen = Foreseen((4, 5, 6), 2)
    once = unknown.after(foreseen, [4, 5, 9, 6])
    assert (once.true.tolist()[:4], once.false.tolist()[:4]) == ([1, 1, 0, 0], [0, 0, 1, 0])
    assert unknown.after(foreseen, [4]).true.tolist()[:2] == [1, 0], "a plain round shows one token"
    assert unknown.after(None, [4]) is unknown
    seen = unknown
    for came in [4] * 30 + [9] * 10:
        seen = seen.after(foreseen, [came])
    assert seen.chance(2) == pytest.approx(0.75, abs=0.08)
    assert seen.chance(3) == unknown.chance(3)


def test_the_chances_of_a_block_multiply_as_the_match_grows() -> None:
    known = Foresight()
    standing = known.standing(Foreseen((1, 2, 3), 2))
    assert standing == pytest.approx(list(np.cumprod([known.chance(length) for length in (2, 3, 4)])))


def test_old_evidence_fades_and_the_packed_form_is_all_of_it() -> None:
    seen = Foresight()
    for came in [4] * 200 + [9] * FULL:
        seen = seen.after(Foreseen((4,), 9), [came])
    assert seen.chance(9) < 0.35
    assert int(seen.true.max()) + int(seen.false.max()) <= FULL
    again = Foresight.unpack(seen.pack())
    assert (again.true.tolist(), again.false.tolist()) == (seen.true.tolist(), seen.false.tolist())
    assert len(again.true) == CLASSES
    assert abs(again.faded().chance(9) - 0.5) < abs(again.chance(9) - 0.5)
