"""Draft rows, compiled for the CPU: a row's entropy, and its likeliest ids, weighed and rounded, in one go.

The threads of the products share the rows. Each row goes through the same sums, whoever else is there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

from adasd.core.rows import SPARSE_TOTAL
from adasd.core.types import FloatArray, IntArray
from adasd.kernels.compiled import as_written, compiled
from adasd.kernels.loops import BLOCK, peak_of, sums_of
from adasd.kernels.team import FIRST, ITEMS, Order, Shared, pointer, taken

LOGITS, TEMPERATURE, COLUMNS, FOUND, IDS, WEIGHTS, COUNTS, WIDTH, ROOM = range(FIRST, FIRST + 9)
"""Places in an order: addresses (COLUMNS may be 0), then sizes."""


class Entries(NamedTuple):
    """Of n rows. peaks: the largest logit (NaN if there is one); where it is not finite a row has no entries and its
    entropy means nothing. entropies: in bits. ids, ascending, and weights that sum to 2^16: int64 [n, k], of which
    the first `counts` count. All others [n].
    """

    peaks: FloatArray
    entropies: FloatArray
    ids: IntArray
    weights: IntArray
    counts: IntArray


def entries(logits: Any, temperature: float, support: int, columns: IntArray | None = None) -> Entries:
    """At most `support` a row; of several equals at the end of that the highest ids are kept.

    logits: float32 or float64 [n, width], in numpy. columns: int64 [width], ascending, the id of each; None: itself.
    """
    rows, width = logits.shape
    room = min(support, width)
    given, heat = np.ascontiguousarray(logits), np.array([temperature], dtype=np.float64)
    found, chosen, counts = np.empty((2, rows)), np.empty((2, rows, room), dtype=np.int64), np.zeros(rows, np.int64)
    known = None if columns is None else np.ascontiguousarray(columns)
    FIND[given.dtype.itemsize](ordered(given, heat, known, (found, *chosen, counts)))
    return Entries(found[0], found[1], chosen[0], chosen[1], counts)


def ordered(logits: Any, heat: FloatArray, columns: IntArray | None, out: Sequence[NDArray[Any]]) -> Order:
    """What FIND is told; all of it must outlive the order. heat: the temperature, [1]. out: of every row peak and
    entropy, [2, n]; ids and weights, [n, k] each; counts, [n]."""
    arrays = logits, heat, columns, *out
    addresses = (0 if array is None else array.ctypes.data for array in arrays)
    return Order(len(logits), *addresses, logits.shape[1], out[1].shape[1])


@as_written
def _share(address: int, logits: Any) -> None:
    what = numba.carray(pointer(address), ROOM + 1, np.int64)
    rows, width, room = what[ITEMS], what[WIDTH], what[ROOM]
    temperature = numba.carray(pointer(what[TEMPERATURE]), 1, np.float64)[0]
    found = numba.carray(pointer(what[FOUND]), (2, rows), np.float64)
    ids = numba.carray(pointer(what[IDS]), (rows, room), np.int64)
    weights = numba.carray(pointer(what[WEIGHTS]), (rows, room), np.int64)
    counts = numba.carray(pointer(what[COUNTS]), rows, np.int64)
    columns = numba.carray(pointer(what[COLUMNS]), width, np.int64)
    row = taken(address)
    while row < rows:
        peak = peak_of(logits[row])
        found[0, row], found[1, row] = peak, np.nan
        if np.isfinite(peak):
            found[1, row] = _entropy(logits[row], peak, temperature)
            _likeliest(logits[row], ids[row])
            ids[row].sort()
            counts[row] = _weigh(logits[row], peak, temperature, ids[row], weights[row])
            if what[COLUMNS] != 0:
                _name(ids[row, : counts[row]], columns)
        row = taken(address)


@compiled
def _entropy(row: Any, peak: float, temperature: float) -> float:
    """In bits, of the mass and the sum of every weight times its logarithm."""
    mass, logs = sums_of(row, peak, temperature, np.empty((2, BLOCK)), np.empty(BLOCK, np.int64))
    return max((math.log(mass) - logs / mass) / math.log(2.0), 0.0)


@compiled
def _name(places: IntArray, columns: IntArray) -> None:
    for j in range(len(places)):
        places[j] = columns[places[j]]


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


@Shared
def _by_float32(address: int) -> None:
    what = numba.carray(pointer(address), ROOM + 1, np.int64)
    _share(address, numba.carray(pointer(what[LOGITS]), (what[ITEMS], what[WIDTH]), np.float32))


@Shared
def _by_float64(address: int) -> None:
    what = numba.carray(pointer(address), ROOM + 1, np.int64)
    _share(address, numba.carray(pointer(what[LOGITS]), (what[ITEMS], what[WIDTH]), np.float64))


FIND = {4: _by_float32, 8: _by_float64}
"""By bytes of a logit."""
