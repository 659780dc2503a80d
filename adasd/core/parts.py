"""A long block in two passes: what stands behind its first rejected candidate is not worth a pass's time.

Where a pass takes longer the more rows it has, the target reads the first candidates, and the others only if all of
those stand. What it says of them is the same: rows do not depend on what comes after them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

LEAST_SAVING = 0.05
"""Of a pass over all, that the parts must be expected to save: no more is known of passes than that."""


@lru_cache(maxsize=1024)
def first_part(candidates: int, acceptance: float, passes: tuple[float, ...]) -> int:
    """How many candidates to read first: all of them where that takes the least time.

    acceptance: the chance that a candidate stands if those before it do. passes: seconds of a pass over 1, 2, 4, ...
    rows; nothing is known without any.
    """
    if candidates < 2 or not passes:
        return candidates
    seconds = _seconds(candidates + 1, passes)
    whole = seconds[candidates]
    expected = [seconds[first] + acceptance**first * seconds[candidates - first] for first in range(1, candidates)]
    best = min(range(len(expected)), key=expected.__getitem__)
    return best + 1 if expected[best] < (1.0 - LEAST_SAVING) * whole else candidates


def _seconds(rows: int, passes: Sequence[float]) -> list[float]:
    """Of a pass over 1 to `rows` rows."""
    known = [1 << power for power in range(len(passes))]
    steady = np.maximum.accumulate(passes)
    seconds: list[float] = np.interp(range(1, rows + 1), known, steady).tolist()
    return seconds
