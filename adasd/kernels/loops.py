"""What takes a pass over whole rows, compiled for the CPU: torch makes several, each with a row of its own to write.

A row's sums are taken in an order of their own, whatever other rows are there. Weights are as in `warping`: 1 at the
peak, float64.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numba
import numpy as np
import torch
from torch import Tensor

from adasd.core.types import FloatArray, IntArray, Row
from adasd.kernels.compiled import compiled
from adasd.kernels.team import FIRST, ITEMS, Order, Shared, pointer, taken

BLOCK = 512
"""Weights at a time: they stay in the nearest cache."""
NEGLIGIBLE = -700.0
"""Log of a weight that adds nothing to a sum of weights."""
NOTHING = 1e-304
"""What such a weight may come out as at most."""

NO_IDS: IntArray = np.empty(0, dtype=np.int64)
NO_SHARES: FloatArray = np.empty(0)


def take(logits: Tensor) -> bool:
    """Whether these loops read such logits."""
    return logits.device.type == "cpu" and logits.dtype in (torch.float32, torch.float64)


class Sums(NamedTuple):
    """Of every row: all weights, and every weight times its logarithm, float64 [rows, 1]; the weights of each block,
    float64 [rows, blocks]."""

    mass: Tensor
    logs: Tensor
    blocks: FloatArray


def sums(logits: Tensor, peak: Tensor, temperature: float) -> Sums:
    """logits: [rows, vocabulary], which `take` takes. peak: float64 [rows, 1]; unless finite, a row means nothing."""
    rows, blocks = len(logits), -(-logits.shape[-1] // BLOCK)
    found, parts = np.empty((2, rows, 1)), np.empty((rows, blocks))
    _sums(logits.numpy(), peak.numpy(), temperature, found, parts)
    mass, logs = torch.from_numpy(found)
    return Sums(mass, logs, parts)


class Whole(NamedTuple):
    """Of every row of which nothing is cut: its largest logit (NaN if it holds one), the sum of its weights, and of
    every weight times its logarithm, all float64 [rows]; the weights of each block, float64 [rows, blocks].
    """

    peaks: FloatArray
    masses: FloatArray
    logs: FloatArray
    blocks: FloatArray


def whole(logits: Any, temperature: float) -> Whole:
    """logits: float32 or float64 [rows, vocabulary], in numpy. Unless its peak is finite a row means nothing else."""
    peaks, found = np.empty((len(logits), 1)), np.empty((2, len(logits), 1))
    parts = np.empty((len(logits), parts_of(logits.shape[-1])))
    if logits.dtype == np.float32:
        given, heat = np.ascontiguousarray(logits), np.array([temperature], dtype=np.float64)
        sum_up(ordered(given, heat, peaks, found, parts))
    else:
        _peaks(logits, peaks)
        _sums(logits, peaks, temperature, found, parts)
    return Whole(peaks[:, 0], found[0, :, 0], found[1, :, 0], parts)


def parts_of(width: int) -> int:
    """Blocks of a row of so many logits."""
    return -(-width // BLOCK)


def ordered(logits: Any, heat: FloatArray, peaks: FloatArray, found: FloatArray, parts: FloatArray) -> Order:
    """What `sum_up` is told of float32 logits; all of it must outlive the order. heat: the temperature, [1]."""
    addresses = (array.ctypes.data for array in (logits, heat, peaks, found, parts))
    return Order(len(logits), *addresses, logits.shape[-1])


def drawn(row: Any, temperature: float, peak: float, parts: FloatArray, uniform: float) -> int:
    """`draw` from all of a row of float32, [vocabulary]. parts: the weights of its blocks."""
    heat, peaks, uniforms, token = np.array([temperature]), np.array([peak]), np.array([uniform]), np.zeros(1, np.int64)
    draw_from_all(ordered_draw(np.ascontiguousarray(row), heat, peaks, np.ascontiguousarray(parts), uniforms, token))
    return int(token[0])


def ordered_draw(
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
    weights = np.empty(-(-len(row) // BLOCK)) if blocks is None else blocks
    if minus is not None:
        q = minus.weights / minus.total
        if (drawn := _draw(row, kept, minus.ids, q, weights.copy(), known, uniform)) >= 0:
            return int(drawn)
    return int(_draw(row, kept, NO_IDS, NO_SHARES, weights, known, uniform))


@compiled
def _exponentials(x: FloatArray, powers: IntArray) -> None:
    """exp of every x in [NEGLIGIBLE, 0] in place, to a few of its last bits. powers: room for as many.

    2^k times a polynomial of what is left, Taylor's to the 13th power of at most ln 2 / 2: arithmetic that compiles to
    vectors.
    """
    for i in range(len(x)):
        whole = np.floor(x[i] * 1.4426950408889634 + 0.5)
        r = x[i] - whole * 0.6931471805599453
        p = r * 1.6059043836821613e-10 + 2.08767569878681e-09
        p = p * r + 2.505210838544172e-08
        p = p * r + 2.755731922398589e-07
        p = p * r + 2.7557319223985893e-06
        p = p * r + 2.48015873015873e-05
        p = p * r + 0.0001984126984126984
        p = p * r + 0.001388888888888889
        p = p * r + 0.008333333333333333
        p = p * r + 0.041666666666666664
        p = p * r + 0.16666666666666666
        p = p * r + 0.5
        p = p * r + 1.0
        powers[i] = np.int64(np.int32(whole) + 1023) << 52
        x[i] = p * r + 1.0
    factors = powers.view(np.float64)
    for i in range(len(x)):
        x[i] *= factors[i]


@compiled
def _peaks(logits: Any, found: FloatArray) -> None:
    for index in range(logits.shape[0]):
        found[index, 0] = peak_of(logits[index])


@compiled
def peak_of(row: Any) -> float:
    """The largest logit of a row, NaN if there is one."""
    peak, numbers = row[0], 0
    for i in range(len(row)):
        numbers += row[i] == row[i]
        peak = max(peak, row[i])
    return peak if numbers == len(row) else np.nan


@compiled
def _sums(logits: Any, peaks: FloatArray, temperature: float, found: FloatArray, parts: FloatArray) -> None:
    scratch, powers = np.empty((2, BLOCK)), np.empty(BLOCK, np.int64)
    for index in range(logits.shape[0]):
        sums = sums_of(logits[index], peaks[index, 0], temperature, parts[index], scratch, powers)
        found[0, index, 0], found[1, index, 0] = sums


@compiled
def sums_of(
    row: Any, peak: float, temperature: float, parts: FloatArray, scratch: FloatArray, powers: IntArray
) -> tuple[float, float]:
    """Of all weights, and of every weight times its logarithm. parts: made here. scratch, powers: room for a block."""
    mass, total = 0.0, 0.0
    for b in range(len(parts)):
        part = row[b * BLOCK : (b + 1) * BLOCK]
        log, weight = scratch[0, : len(part)], scratch[1, : len(part)]
        for i in range(len(part)):
            log[i] = weight[i] = max((part[i] - peak) / temperature, NEGLIGIBLE)
        _exponentials(weight, powers[: len(part)])
        block = 0.0
        for i in range(len(part)):
            counted = weight[i] if weight[i] > NOTHING else 0.0
            block += counted
            total += counted * log[i]
        parts[b] = block
        mass += block
    return mass, total


LOGITS, TEMPERATURE, PEAKS, FOUND, PARTS, WIDTH = range(FIRST, FIRST + 6)
"""Places in the order of `sum_up`: addresses, and the vocabulary."""


@Shared
def sum_up(address: int) -> None:
    """`_peaks` and `_sums` of float32 rows; each is an item. All such rows come here: compiled elsewhere the same loops
    may round otherwise."""
    what = numba.carray(pointer(address), WIDTH + 1, np.int64)
    rows, width = what[ITEMS], what[WIDTH]
    logits = numba.carray(pointer(what[LOGITS]), (rows, width), np.float32)
    temperature = numba.carray(pointer(what[TEMPERATURE]), 1, np.float64)[0]
    peaks = numba.carray(pointer(what[PEAKS]), rows, np.float64)
    found = numba.carray(pointer(what[FOUND]), (2, rows), np.float64)
    parts = numba.carray(pointer(what[PARTS]), (rows, -(-width // BLOCK)), np.float64)
    scratch, powers = np.empty((2, BLOCK)), np.empty(BLOCK, np.int64)
    row = taken(address)
    while row < rows:
        peaks[row] = peak_of(logits[row])
        found[0, row], found[1, row] = sums_of(logits[row], peaks[row], temperature, parts[row], scratch, powers)
        row = taken(address)


@compiled
def _weights(
    row: Any, kept: Kept, start: int, ids: IntArray, q: FloatArray, first: int, out: FloatArray, powers: IntArray
) -> int:
    """Of the ids from `start` on: those kept, less what is taken away; the place in `ids` of the first one beyond.

    first: the place of the first id from `start` on.
    """
    for i in range(len(out)):
        out[i] = max((row[start + i] - kept.peak) / kept.temperature, NEGLIGIBLE)
    _exponentials(out, powers)
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
    """-1 if nothing is left. sums: of the blocks, where they are known; those that `ids` touch are made anew."""
    weights, powers, first = np.empty(BLOCK), np.empty(BLOCK, np.int64), 0
    for b in range(len(sums)):
        if not known or (first < len(ids) and ids[first] < (b + 1) * BLOCK):
            out = weights[: min(BLOCK, len(row) - b * BLOCK)]
            first = _weights(row, kept, b * BLOCK, ids, q, first, out, powers[: len(out)])
            sums[b] = out.sum()
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
