"""What a decoder layer does to every number by itself, and the norms, compiled for the CPU.

Made once a pass: a call is then little more than its loop. Few tokens are done at once; the threads of the products
share the blocks of many.
"""

from __future__ import annotations

import numba
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adasd.kernels.compiled import compiled
from adasd.kernels.exponentials import exponentials
from adasd.kernels.team import FIRST, ITEMS, Order, Shared, pointer, taken

TOKENS = 16
"""Of a block."""

Floats = NDArray[np.float32]

X, ADDEND, WEIGHT, NORMED, EPSILON, ROWS, WIDTH = range(FIRST, FIRST + 7)
"""Places in the order of `_add_normed`: addresses, then sizes."""

BOTH, OUT, HALVES, HALF = range(FIRST, FIRST + 4)
"""Places in the order of `_gated`, likewise."""


class Residual:
    """x += addend, then RMSNorm of it. x: float32 [tokens, width], kept."""

    def __init__(self, x: Tensor, epsilon: float) -> None:
        self._x, self._normed = x, torch.empty_like(x)
        self._epsilon = np.array([epsilon], dtype=np.float32)
        addresses = x.data_ptr(), 0, 0, self._normed.data_ptr(), self._epsilon.ctypes.data
        self._order = Order(-(-len(x) // TOKENS), *addresses, *x.shape)

    def add(self, addend: Tensor, weight: Tensor) -> Tensor:
        """addend: [tokens, width]. weight: [width]. [tokens, width], until the next call."""
        _check(addend, weight)
        numbers = self._order.numbers
        numbers[ADDEND], numbers[WEIGHT] = addend.data_ptr(), weight.data_ptr()
        _add_normed(self._order)
        return self._normed


class Gates:
    """SiLU of the first half of every row, times the second."""

    def __init__(self, tokens: int, width: int) -> None:
        self._out = torch.empty(tokens, width)
        self._order = Order(-(-tokens // TOKENS), 0, self._out.data_ptr(), tokens, width)

    def __call__(self, both: Tensor) -> Tensor:
        """both: float32 [tokens, 2 width]. [tokens, width], until the next call."""
        _check(both)
        self._order.numbers[BOTH] = both.data_ptr()
        _gated(self._order)
        return self._out


def _check(*arrays: Tensor) -> None:
    for array in arrays:
        assert array.dtype == torch.float32, "it is told by its address"
        assert array.is_contiguous(), "likewise"


@Shared
def _add_normed(address: int) -> None:
    what = numba.carray(pointer(address), WIDTH + 1, np.int64)
    rows, width = what[ROWS], what[WIDTH]
    x = numba.carray(pointer(what[X]), (rows, width), np.float32)
    addend = numba.carray(pointer(what[ADDEND]), (rows, width), np.float32)
    weight = numba.carray(pointer(what[WEIGHT]), width, np.float32)
    normed = numba.carray(pointer(what[NORMED]), (rows, width), np.float32)
    epsilon = numba.carray(pointer(what[EPSILON]), 1, np.float32)[0]
    block = taken(address)
    while block < what[ITEMS]:
        for token in range(block * TOKENS, min((block + 1) * TOKENS, rows)):
            _norm(x[token], addend[token], weight, epsilon, normed[token])
        block = taken(address)


@compiled
def _norm(x: Floats, addend: Floats, weight: Floats, epsilon: np.float32, out: Floats) -> None:
    square = np.float32(0.0)
    for i in range(len(x)):
        value = x[i] + addend[i]
        x[i] = value
        square += value * value
    factor = np.float32(1.0) / np.sqrt(square / np.float32(len(x)) + epsilon)
    for i in range(len(x)):
        out[i] = x[i] * factor * weight[i]


@Shared
def _gated(address: int) -> None:
    what = numba.carray(pointer(address), HALF + 1, np.int64)
    rows, width = what[HALVES], what[HALF]
    both = numba.carray(pointer(what[BOTH]), (rows, 2 * width), np.float32)
    out = numba.carray(pointer(what[OUT]), (rows, width), np.float32)
    powers = np.empty(width, np.int32)
    block = taken(address)
    while block < what[ITEMS]:
        for token in range(block * TOKENS, min((block + 1) * TOKENS, rows)):
            _gate(both[token, :width], both[token, width:], powers, out[token])
        block = taken(address)


@compiled
def _gate(gate: Floats, up: Floats, powers: NDArray[np.int32], out: Floats) -> None:
    for i in range(len(out)):
        out[i] = -abs(gate[i])
    exponentials(out, powers, np.float32(0.0))
    for i in range(len(out)):
        above = np.float32(1.0) if gate[i] >= np.float32(0.0) else out[i]
        out[i] = gate[i] * above / (np.float32(1.0) + out[i]) * up[i]
