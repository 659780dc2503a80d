"""Draws that branch: every outcome of every draw, each with its probability, so that a distribution can be enumerated.

A key's uniform is not a number but an interval that outcomes narrow: one key, one value, across rounds and purposes.
`Explorer.run` replays the program once per path, depth first.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable
from typing import TypeVar

import numpy as np

from adasd.core.draws import DrawKey
from adasd.core.types import FloatArray, IntArray

T = TypeVar("T", bound=Hashable)
KeyOf = Callable[[DrawKey], Hashable]


def by_base(key: DrawKey) -> Hashable:
    """The product's keys."""
    return (key.base, key.offset, key.purpose)


def by_position(key: DrawKey) -> Hashable:
    """The tempting, wrong keys: absolute position."""
    return (key.base + key.offset, key.purpose)


class BranchingDraws:
    """Implements `Draws` along one path of choices; new choices are taken first-outcome-first and remembered."""

    def __init__(self, path: list[tuple[int, int]], key_of: KeyOf) -> None:
        self._path = path  # (outcome taken, outcomes there are)
        self._step = 0
        self._key_of = key_of
        self._interval: dict[Hashable, tuple[float, float]] = {}

    @property
    def probability(self) -> float:
        return float(np.prod([high - low for low, high in self._interval.values()]))

    def bernoulli(self, key: DrawKey, probability: float) -> bool:
        return self._narrow(key, [min(1.0, max(0.0, probability)), 1.0]) == 0

    def categorical(self, key: DrawKey, weights: FloatArray | IntArray) -> int:
        cumulative = np.cumsum(weights) / np.sum(weights)
        cumulative[np.flatnonzero(weights)[-1] :] = 1.0
        return self._narrow(key, cumulative.tolist())

    def gumbel(self, position: int, ids: IntArray) -> FloatArray:
        raise AssertionError("Gumbel noise has no finite number of outcomes")

    def _narrow(self, key: DrawKey, edges: list[float]) -> int:
        """Outcome i is the uniform falling into [edges[i-1], edges[i])."""
        name = self._key_of(key)
        low, high = self._interval.get(name, (0.0, 1.0))
        pieces = [
            (i, max(low, left), min(high, right))
            for i, (left, right) in enumerate(zip([0.0, *edges], edges, strict=False))
            if min(high, right) > max(low, left)
        ]
        if self._step == len(self._path):
            self._path.append((0, len(pieces)))
        taken, count = self._path[self._step]
        assert count == len(pieces), "the program is not a function of its draws"
        self._step += 1
        outcome, left, right = pieces[taken]
        self._interval[name] = (left, right)
        return outcome


def enumerate_outcomes(program: Callable[[BranchingDraws], T], key_of: KeyOf = by_base) -> dict[T, float]:
    """The exact distribution of what `program` returns."""
    outcomes: dict[T, float] = defaultdict(float)
    path: list[tuple[int, int]] = []
    while True:
        draws = BranchingDraws(path, key_of)
        result = program(draws)
        outcomes[result] += draws.probability
        while path and path[-1][0] + 1 == path[-1][1]:
            path.pop()
        if not path:
            return dict(outcomes)
        path[-1] = (path[-1][0] + 1, path[-1][1])
