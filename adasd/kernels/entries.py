"""The entries of draft rows, compiled for the CPU: the likeliest ids, weighed and rounded, in one pass over a row."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from adasd.core.rows import SPARSE_TOTAL
from adasd.core.types import FloatArray, IntArray
from adasd.kernels.compiled import compiled


class Entries(NamedTuple):
    """Of n rows: places, ascending, and weights that sum to 2^16, int64 [n, k]; how many of the k count, [n]."""

    places: IntArray
    weights: IntArray
    counts: IntArray


def entries(logits: Any, peaks: FloatArray, temperature: float, support: int) -> Entries:
    """Of several equals at the end of what a row has room for the highest ids are kept.

    logits: float32 or float64 [n, width]. peaks: the largest of each; a row where it is not finite has no entries.
    """
    rows, room = len(logits), min(support, logits.shape[1])
    places, weights = np.zeros((2, rows, room), dtype=np.int64)
    found = Entries(places, weights, np.zeros(rows, dtype=np.int64))
    _entries(logits, peaks, temperature, *found)
    return found


@compiled
def _entries(
    logits: Any, peaks: FloatArray, temperature: float, places: IntArray, weights: IntArray, counts: IntArray
) -> None:
    for i in range(len(logits)):
        if np.isfinite(peaks[i]):
            _likeliest(logits[i], places[i])
            places[i].sort()
            counts[i] = _weigh(logits[i], peaks[i], temperature, places[i], weights[i])


@compiled
def _likeliest(row: Any, places: IntArray) -> None:
    """Those of the largest values, in any order; of equals the highest. A heap, the least at its root: hardly a value
    of a row is larger than that, once the first ones are in.
    """
    room = len(places)
    for place in range(room):
        places[place] = place
    for root in range(room // 2 - 1, -1, -1):
        _sift(row, places, root)
    for place in range(room, len(row)):
        if row[place] >= row[places[0]]:
            places[0] = place
            _sift(row, places, 0)


@compiled
def _sift(row: Any, places: IntArray, root: int) -> None:
    """Let what is at `root` sink below all that is less."""
    place, room = places[root], len(places)
    while 2 * root + 1 < room:
        child = 2 * root + 1
        if child + 1 < room and _less(row, places[child + 1], places[child]):
            child += 1
        if not _less(row, places[child], place):
            break
        places[root] = places[child]
        root = child
    places[root] = place


@compiled
def _less(row: Any, a: int, b: int) -> bool:
    return row[a] < row[b] or (row[a] == row[b] and a < b)


@compiled
def _weigh(row: Any, peak: float, temperature: float, places: IntArray, weights: IntArray) -> int:
    """Round the cumulative weights, as `round_weights` does, and close up over places that get none."""
    shares = np.empty(len(places))
    mass = 0.0
    for j in range(len(places)):
        mass += np.exp((row[places[j]] - peak) / temperature)
        shares[j] = mass
    before, kept = 0, 0
    for j in range(len(places)):
        upto = int(np.floor(shares[j] * (SPARSE_TOTAL / mass) + 0.5))
        if upto > before:
            places[kept], weights[kept] = places[j], upto - before
            before, kept = upto, kept + 1
    return kept
