"""Sums over whole rows, compiled for the CPU: torch makes several passes, each with a row of its own to write.

A row's sums are taken in an order of their own, whatever other rows are there. Weights are as in `warping`: 1 at the
peak, float64.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numba
import numpy as np
import torch
from torch import Tensor

from adasd.core.types import FloatArray, IntArray
from adasd.kernels.compiled import ARITHMETIC, KEEPS, compiled

BLOCK = 512
"""Weights at a time: they stay in the nearest cache."""
NEGLIGIBLE = -700.0
"""Log of a weight that adds nothing to a sum of weights."""
NOTHING = 1e-304
"""What such a weight may come out as at most."""


def take(logits: Tensor) -> bool:
    """Whether these loops read such logits."""
    return logits.is_cpu and (logits.dtype is torch.float32 or logits.dtype is torch.float64)


class Sums(NamedTuple):
    """Of every row: all weights, and every weight times its logarithm, float64 [rows, 1]."""

    mass: Tensor
    logs: Tensor


def sums(logits: Tensor, peak: Tensor, temperature: float) -> Sums:
    """logits: [rows, vocabulary], which `take` takes. peak: float64 [rows, 1]; unless finite, a row means nothing."""
    found = np.empty((2, len(logits), 1))
    _sums(logits.numpy(), peak.numpy(), temperature, found)
    return Sums(*torch.from_numpy(found))


def parts_of(width: int) -> int:
    """Blocks of a row of so many logits."""
    return -(-width // BLOCK)


@compiled
def exponentials(x: FloatArray, powers: IntArray) -> None:
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
def peak_of(row: Any) -> float:
    """The largest logit of a row, NaN if there is one."""
    numbers = 0
    for i in range(len(row)):
        numbers += row[i] == row[i]
    return _largest(row) if numbers == len(row) else np.nan


@numba.njit(nogil=True, cache=KEEPS, fastmath=ARITHMETIC | {"nnan"})  # type: ignore[untyped-decorator]
def _largest(row: Any) -> float:
    """Of numbers: only without NaN may several be compared at a time."""
    peak = row[0]
    for i in range(len(row)):
        if row[i] > peak:
            peak = row[i]
    return float(peak)


@compiled
def _sums(logits: Any, peaks: FloatArray, temperature: float, found: FloatArray) -> None:
    scratch, powers = np.empty((2, BLOCK)), np.empty(BLOCK, np.int64)
    for index in range(logits.shape[0]):
        found[0, index, 0], found[1, index, 0] = sums_of(logits[index], peaks[index, 0], temperature, scratch, powers)


@compiled
def sums_of(row: Any, peak: float, temperature: float, scratch: FloatArray, powers: IntArray) -> tuple[float, float]:
    """Of all weights, and of every weight times its logarithm. scratch, powers: room for a block."""
    mass, total = 0.0, 0.0
    for start in range(0, len(row), BLOCK):
        part = row[start : start + BLOCK]
        log, weight = scratch[0, : len(part)], scratch[1, : len(part)]
        for i in range(len(part)):
            log[i] = weight[i] = max((part[i] - peak) / temperature, NEGLIGIBLE)
        exponentials(weight, powers[: len(part)])
        for i in range(len(part)):
            counted = weight[i] if weight[i] > NOTHING else 0.0
            mass += counted
            total += counted * log[i]
    return mass, total
