"""Target rows of which sampling cuts nothing, on the CPU: their peaks, and their sums once somebody wants them.

A block's rows behind its first rejected candidate are never looked at, so nobody sums them. The threads of the products
share a row, a few of its blocks at a time, and each block's sum is its own, however many threads there are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numba
import numpy as np

from adasd.core.types import FloatArray, IntArray
from adasd.kernels.compiled import as_written, compiled
from adasd.kernels.loops import BLOCK, NEGLIGIBLE, NOTHING, exponentials, parts_of, peak_of
from adasd.kernels.team import FIRST, ITEMS, Order, Shared, Step, pointer, taken

PORTION = 12
"""Blocks that a thread takes at a time."""

LOGITS, TEMPERATURE, PEAKS, BLOCKS, WHICH, ROWS, WIDTH = range(FIRST, FIRST + 7)
"""Places in an order: addresses, then sizes. WHICH: the rows that are to be summed, int64, which PEAKS does not ask."""


class Whole:
    """Some rows of logits, float32 or float64 [rows, vocabulary], in numpy.

    peaks: the largest logit of each (NaN if it holds one), float64 [rows]; unless finite a row means nothing else.
    Weights are 1 at the peak.
    """

    def __init__(self, logits: Any, temperature: float) -> None:
        self.logits = np.ascontiguousarray(logits)
        self._heat = np.array([temperature], dtype=np.float64)
        self.peaks, self._blocks = np.empty(len(logits)), np.empty((len(logits), parts_of(logits.shape[-1])))
        self._masses: dict[int, float] = {}
        WORKS[self.logits.itemsize].peaks(Order(len(logits), *self._told(None)))

    def weigh(self, rows: Sequence[int]) -> None:
        """Sum them all at once."""
        which = np.array(rows, dtype=np.int64)
        items = len(rows) * portions(self.logits.shape[-1])
        WORKS[self.logits.itemsize].sums(Order(items, *self._told(which)))
        self._masses.update(zip(rows, self._blocks[which].sum(-1).tolist(), strict=True))

    def mass(self, row: int) -> float:
        """The sum of its weights."""
        if row not in self._masses:
            self.weigh([row])
        return self._masses[row]

    def blocks(self, row: int) -> FloatArray:
        """The sums of its blocks, [parts_of(vocabulary)]; not to be changed."""
        self.mass(row)
        blocks: FloatArray = self._blocks[row]
        return blocks

    def _told(self, which: IntArray | None) -> tuple[int, ...]:
        return _told(self.logits, self._heat, self.peaks, self._blocks, which)


def steps(logits: Any, heat: FloatArray, peaks: FloatArray, blocks: FloatArray, which: IntArray) -> list[Step]:
    """That find the peaks of all rows and sum some, one after the other; all they are told must outlive the program.

    heat: the temperature, [1]. peaks: [rows]. blocks: [rows, parts_of(vocabulary)]. which: rows, int64.
    """
    works, told = WORKS[logits.itemsize], _told(logits, heat, peaks, blocks, which)
    items = len(logits), len(which) * portions(logits.shape[-1])
    return [(work, (count, *told)) for work, count in zip(works, items, strict=True)]


def _told(
    logits: Any, heat: FloatArray, peaks: FloatArray, blocks: FloatArray, which: IntArray | None
) -> tuple[int, ...]:
    arrays = logits, heat, peaks, blocks, which
    return *(0 if array is None else array.ctypes.data for array in arrays), *logits.shape


def portions(width: int) -> int:
    """Items that the sums of a row of so many logits are."""
    return -(-parts_of(width) // PORTION)


@as_written
def _find_peaks(address: int, logits: Any) -> None:
    """An item is a row."""
    what = numba.carray(pointer(address), WIDTH + 1, np.int64)
    peaks = numba.carray(pointer(what[PEAKS]), what[ROWS], np.float64)
    row = taken(address)
    while row < what[ITEMS]:
        peaks[row] = peak_of(logits[row])
        row = taken(address)


@as_written
def _sum_up(address: int, logits: Any) -> None:
    """An item is a portion of a row that is asked for."""
    what = numba.carray(pointer(address), WIDTH + 1, np.int64)
    parts = -(-what[WIDTH] // BLOCK)
    each = -(-parts // PORTION)
    temperature = numba.carray(pointer(what[TEMPERATURE]), 1, np.float64)[0]
    peaks = numba.carray(pointer(what[PEAKS]), what[ROWS], np.float64)
    blocks = numba.carray(pointer(what[BLOCKS]), (what[ROWS], parts), np.float64)
    which = numba.carray(pointer(what[WHICH]), what[ITEMS] // each, np.int64)
    weights, powers = np.empty(BLOCK), np.empty(BLOCK, np.int64)
    item = taken(address)
    while item < what[ITEMS]:
        row, first = which[item // each], item % each * PORTION
        for block in range(first, min(first + PORTION, parts)):
            part = logits[row, block * BLOCK : (block + 1) * BLOCK]
            blocks[row, block] = _weight(part, peaks[row], temperature, weights, powers)
        item = taken(address)


@compiled
def _weight(part: Any, peak: float, temperature: float, weights: FloatArray, powers: IntArray) -> float:
    """Of a block. weights, powers: room for it."""
    weights, powers = weights[: len(part)], powers[: len(part)]
    for i in range(len(part)):
        weights[i] = max((part[i] - peak) / temperature, NEGLIGIBLE)
    exponentials(weights, powers)
    total = 0.0
    for i in range(len(part)):
        total += weights[i] if weights[i] > NOTHING else 0.0
    return total


@as_written
def _shape(address: int) -> tuple[int, int]:
    what = numba.carray(pointer(address), WIDTH + 1, np.int64)
    return what[ROWS], what[WIDTH]


@as_written
def _place(address: int) -> int:
    return int(numba.carray(pointer(address), WIDTH + 1, np.int64)[LOGITS])


@Shared
def _peaks_of_float32(address: int) -> None:
    _find_peaks(address, numba.carray(pointer(_place(address)), _shape(address), np.float32))


@Shared
def _peaks_of_float64(address: int) -> None:
    _find_peaks(address, numba.carray(pointer(_place(address)), _shape(address), np.float64))


@Shared
def _sums_of_float32(address: int) -> None:
    _sum_up(address, numba.carray(pointer(_place(address)), _shape(address), np.float32))


@Shared
def _sums_of_float64(address: int) -> None:
    _sum_up(address, numba.carray(pointer(_place(address)), _shape(address), np.float64))


class Works(NamedTuple):
    """On logits of one type. All such rows come here: compiled elsewhere the same loops may round otherwise."""

    peaks: Shared
    sums: Shared


WORKS = {4: Works(_peaks_of_float32, _sums_of_float32), 8: Works(_peaks_of_float64, _sums_of_float64)}
"""By bytes of a logit."""
