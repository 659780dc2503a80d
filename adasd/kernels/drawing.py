"""Draws from whole rows, compiled for the CPU: inverse CDF in ascending id order, of p or of [p - q]+.

Weights are as in `warping`: 1 at the peak, float64.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numba
import numpy as np

from adasd.core.types import FloatArray, IntArray, Row
from adasd.kernels.compiled import compiled
from adasd.kernels.loops import BLOCK, NEGLIGIBLE, NOTHING, exponentials, parts_of
from adasd.kernels.team import FIRST, Order, Shared, pointer, taken

NO_IDS: IntArray = np.empty(0, dtype=np.int64)
NO_SHARES: FloatArray = np.empty(0)

FEW = 32
"""Up to so many ids of a block are taken from its sum one by one."""
LEAST = 1e-6
"""What must be left of a sum so that it need not be made anew: it is then good to 1e-9 of itself."""


def drawn(row: Any, temperature: float, peak: float, parts: FloatArray, uniform: float) -> int:
    """`draw` from all of a row of float32, [vocabulary]. parts: the weights of its blocks."""
    heat, peaks, uniforms, token = np.array([temperature]), np.array([peak]), np.array([uniform]), np.zeros(1, np.int64)
    draw_from_all(ordered(np.ascontiguousarray(row), heat, peaks, np.ascontiguousarray(parts), uniforms, token))
    return int(token[0])


def ordered(
    row: Any, heat: FloatArray, peak: FloatArray, parts: FloatArray, uniform: FloatArray, token: IntArray
) -> Order:
    """What `draw_from_all` is told of a row of float32; all of it must outlive the order. heat, peak, uniform, token:
    [1]."""
    addresses = (array.ctypes.data for array in (row, heat, peak, parts, uniform, token))
    return Order(1, *addresses, len(row))


class Kept(NamedTuple):
    """Which ids of a row sampling keeps: those of a logit above `value`, and those of `value` from `first_id` on."""

    peak: float
    temperature: float
    value: float
    first_id: int
    mass: float


def draw(row: Any, kept: Kept, blocks: FloatArray | None, minus: Row | None, uniform: float) -> int:
    """The first id whose cumulative probability exceeds uniform * sum; never one of probability 0.

    Of [p - q]+ where there is a row to take away, or of p where that leaves nothing. row: logits in numpy,
    [vocabulary]. blocks: their weights, where every id is kept.
    """
    known = blocks is not None
    weights = np.empty(parts_of(len(row))) if blocks is None else blocks
    if minus is not None:
        q = minus.weights / minus.total
        if (drawn := _draw(row, kept, minus.ids, q, weights.copy(), known, uniform)) >= 0:
            return int(drawn)
    return int(_draw(row, kept, NO_IDS, NO_SHARES, weights, known, uniform))


@compiled
def _weights(
    row: Any, kept: Kept, start: int, ids: IntArray, q: FloatArray, first: int, out: FloatArray, powers: IntArray
) -> int:
    """Of the ids from `start` on: those kept, less what is taken away; the place in `ids` of the first one beyond.

    first: the place of the first id from `start` on.
    """
    for i in range(len(out)):
        out[i] = max((row[start + i] - kept.peak) / kept.temperature, NEGLIGIBLE)
    exponentials(out, powers)
    for i in range(len(out)):
        stays = row[start + i] > kept.value or (row[start + i] == kept.value and start + i >= kept.first_id)
        out[i] = out[i] if stays and out[i] > NOTHING else 0.0
    while first < len(ids) and ids[first] < start + len(out):
        place = ids[first] - start
        out[place] = max(0.0, out[place] - q[first] * kept.mass)
        first += 1
    return first


@compiled
def _draw(row: Any, kept: Kept, ids: IntArray, q: FloatArray, sums: FloatArray, known: bool, uniform: float) -> int:
    """-1 if nothing is left. sums: of the blocks, from which `ids` are yet to be taken; made here unless known."""
    weights, powers = np.empty(BLOCK), np.empty(BLOCK, np.int64)
    if known:
        _take_away(row, kept, ids, q, sums, weights, powers)
    else:
        first = 0
        for b in range(len(sums)):
            sums[b], first = _sum(row, kept, b, ids, q, first, weights, powers)
    total = sums.sum()
    if not total > 0.0:
        return -1
    mark, before, chosen = uniform * total, 0.0, 0
    for b in range(len(sums)):
        if sums[b] > 0.0:
            chosen = b
            if before + sums[b] > mark:
                break
            before += sums[b]
    out, first = weights[: min(BLOCK, len(row) - chosen * BLOCK)], 0
    while first < len(ids) and ids[first] < chosen * BLOCK:
        first += 1
    _weights(row, kept, chosen * BLOCK, ids, q, first, out, powers[: len(out)])
    drawn = -1
    for i in range(len(out)):
        if out[i] > 0.0:  # should sums round to less than the mark, the last of them has it
            drawn = chosen * BLOCK + i
            before += out[i]
            if before > mark:
                break
    return drawn


@compiled
def _sum(
    row: Any, kept: Kept, block: int, ids: IntArray, q: FloatArray, first: int, weights: FloatArray, powers: IntArray
) -> tuple[float, int]:
    """Of a block, and what `_weights` returns."""
    out = weights[: min(BLOCK, len(row) - block * BLOCK)]
    first = _weights(row, kept, block * BLOCK, ids, q, first, out, powers[: len(out)])
    return out.sum(), first


@compiled
def _take_away(
    row: Any, kept: Kept, ids: IntArray, q: FloatArray, sums: FloatArray, weights: FloatArray, powers: IntArray
) -> None:
    """From sums of blocks of which all ids are kept. One that little is left of is made anew, so that nothing is 0."""
    first = 0
    while first < len(ids):
        block, last, lost = ids[first] // BLOCK, first, 0.0
        while last < len(ids) and ids[last] < (block + 1) * BLOCK and last - first <= FEW:
            weight = math.exp(max((row[ids[last]] - kept.peak) / kept.temperature, NEGLIGIBLE))
            lost += min(weight, q[last] * kept.mass)
            last += 1
        if last - first <= FEW and sums[block] - lost > LEAST * sums[block]:
            sums[block] -= lost
            first = last
        else:
            sums[block], first = _sum(row, kept, block, ids, q, first, weights, powers)


ROW, HEAT, PEAK, BLOCKS, UNIFORM, TOKEN, ROW_WIDTH = range(FIRST, FIRST + 7)
"""Places in the order of `draw_from_all`: addresses, and the vocabulary."""


@Shared
def draw_from_all(address: int) -> None:
    """`_draw` from all of a row of float32. All such draws come here, as all such rows come to `sum_up`."""
    what = numba.carray(pointer(address), ROW_WIDTH + 1, np.int64)
    if taken(address) > 0:
        return
    width = what[ROW_WIDTH]
    row = numba.carray(pointer(what[ROW]), width, np.float32)
    sums = numba.carray(pointer(what[BLOCKS]), -(-width // BLOCK), np.float64)
    temperature = numba.carray(pointer(what[HEAT]), 1, np.float64)[0]
    peak = numba.carray(pointer(what[PEAK]), 1, np.float64)[0]
    uniform = numba.carray(pointer(what[UNIFORM]), 1, np.float64)[0]
    kept = Kept(peak, temperature, -np.inf, 0, 0.0)
    drawn = _draw(row, kept, np.empty(0, np.int64), np.empty(0), sums, True, uniform)
    numba.carray(pointer(what[TOKEN]), 1, np.int64)[0] = drawn
