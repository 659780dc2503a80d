"""What a text says of its own next tokens: where its end has stood before, it may go on as it did there.

Prompt lookup (Saxena 2023; Yang et al. 2023, arXiv 2304.04487): candidates that no model has to be asked for. Answers
about code and documents repeat names, phrases and whole lines of their prompt.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from adasd.core.types import Foreseen

SHORTEST, LONGEST = 2, 16
"""Tokens of the end that must have stood before, and beyond which it does not matter whether more did."""
CLASSES = 7
"""Matches are told apart by length from SHORTEST on; those of SHORTEST + CLASSES - 1 and more are one class."""
PRIOR_WEIGHT = 8.0
"""What is thought of a class before it is seen counts as so many tokens."""
FULL = 64
"""Tokens of a class after which all of them count half."""
FORESIGHT_BYTES = 16

_Counts = NDArray[np.uint8]
_PRIOR = tuple(n / (n + 3.0) for n in range(SHORTEST, SHORTEST + CLASSES))
"""Cautious: it came true for the demo's target at 2, 3, 4 to 5 and 6 tokens in .47, .61, .66 and .75 of the places."""


def foresee(ids: NDArray[np.uint32], most: int) -> Foreseen | None:
    """How the longest earlier stretch that equals the text's end went on, the latest if there are several.

    At most `most` ids; None if not even SHORTEST tokens have stood before. Takes as long as the text, some 10 us for
    8,000 tokens.
    """
    last = len(ids) - 1
    if last < SHORTEST or most < 1:
        return None
    places = np.flatnonzero(ids[:last] == ids[last])
    matched = 1
    while matched < LONGEST and len(places):
        longer = places[places >= matched]
        longer = longer[ids[longer - matched] == ids[last - matched]]
        if not len(longer):
            break
        places, matched = longer, matched + 1
    if matched < SHORTEST or not len(places):
        return None
    start = int(places[-1]) + 1
    return Foreseen(tuple(ids[start : start + most].tolist()), matched)


def _none() -> _Counts:
    return np.zeros(CLASSES, dtype=np.uint8)


@dataclass(frozen=True, slots=True, eq=False)
class Foresight:
    """How often it came true, by the length of the match. true, false: uint8 [CLASSES].

    Learned from every round, whether its candidates were copied, drafted or none: the text shows what came.
    """

    true: _Counts = field(default_factory=_none)
    false: _Counts = field(default_factory=_none)

    def chance(self, matched: int) -> float:
        """That the next token is the one foreseen."""
        place = _place(matched)
        true, false = int(self.true[place]), int(self.false[place])
        return (PRIOR_WEIGHT * _PRIOR[place] + true) / (PRIOR_WEIGHT + true + false)

    def standing(self, foreseen: Foreseen) -> list[float]:
        """By number of foreseen ids, from 1: that all of them come. Every one that does makes the match longer."""
        chances, product = [], 1.0
        for further in range(len(foreseen.ids)):
            product *= self.chance(foreseen.matched + further)
            chances.append(product)
        return chances

    def after(self, foreseen: Foreseen | None, tokens: Iterable[int]) -> Foresight:
        """With what came: as far as it was foreseen, and the first token that was not."""
        if foreseen is None:
            return self
        true, false = self.true.copy(), self.false.copy()
        for further, (expected, came) in enumerate(zip(foreseen.ids, tokens, strict=False)):
            (true if expected == came else false)[_place(foreseen.matched + further)] += 1
            full = true + false > FULL
            true[full] //= 2
            false[full] //= 2
            if expected != came:
                break
        return Foresight(true, false)

    def faded(self) -> Foresight:
        """The same, known from a quarter as much: what one text has to show of how much another repeats."""
        return Foresight(self.true // 4, self.false // 4)

    def pack(self) -> bytes:
        """FORESIGHT_BYTES long."""
        return (self.true.tobytes() + self.false.tobytes()).ljust(FORESIGHT_BYTES, b"\0")

    @classmethod
    def unpack(cls, packed: bytes) -> Foresight:
        """The inverse of `pack`."""
        counts = np.frombuffer(packed, dtype=np.uint8, count=2 * CLASSES)
        return cls(counts[:CLASSES], counts[CLASSES:])


def _place(matched: int) -> int:
    return min(matched - SHORTEST, CLASSES - 1)
