"""Products of rows with a matrix on the CPU, at the speed at which memory brings the matrix.

Four rows are multiplied while a row of the matrix passes by, which a processor does in less time than it takes to read
it: a block of candidates costs what a token costs. The threads of torch's products share the outputs (`team.py`).
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adasd.kernels.compiled import compiled
from adasd.kernels.team import FIRST, ITEMS, Order, Shared, pointer, taken

OUTPUTS = 32
"""Of the matrix that a thread takes at a time: long reads in one go (of 4 to 64 the best; 16 to 64 are alike)."""

WEIGHT, SCALE, X, OUT, ROWS, INPUTS, WIDTH = range(FIRST, FIRST + 7)
"""Places in an order: addresses, then sizes."""


class Matrix:
    """x -> x W^T, each output times its scale. Sums are float32, each row's in an order of its own: a row's result is
    the same to the last bit, whatever other rows are there.

    weight: float32 or int8 [outputs, inputs]. scale: float32 [outputs]; None: 1. For one thread at a time.
    """

    def __init__(self, weight: Tensor, scale: Tensor | None = None) -> None:
        self._weight = weight.detach().contiguous()
        self._scale = torch.ones(len(weight)) if scale is None else scale.detach().contiguous()
        assert self._weight.dtype in _MULTIPLY, "it is told by its address"
        assert self._scale.dtype == torch.float32, "likewise"
        self._multiply = _MULTIPLY[self._weight.dtype]
        addresses = self._weight.data_ptr(), self._scale.data_ptr(), 0, 0
        self._order = Order(-(-len(weight) // OUTPUTS), *addresses, 0, weight.shape[1], len(weight))

    def __call__(self, x: Tensor) -> Tensor:
        """x: float32 [rows, inputs], contiguous; [rows, outputs]."""
        assert x.dtype == torch.float32, "it is told by its address"
        assert x.is_contiguous(), "likewise"
        assert x.shape[1] == self._weight.shape[1], "likewise"
        out = torch.empty(len(x), len(self._weight))
        if len(x):
            numbers = self._order.numbers
            numbers[X], numbers[OUT], numbers[ROWS] = x.data_ptr(), out.data_ptr(), len(x)
            self._multiply(self._order)
        return out


@compiled
def _share(address: int, weight: Any) -> None:
    """Multiply by as many blocks of outputs as the others leave."""
    what = numba.carray(pointer(address), WIDTH + 1, np.int64)
    rows, width = what[ROWS], what[WIDTH]
    scale = numba.carray(pointer(what[SCALE]), width, np.float32)
    x = numba.carray(pointer(what[X]), (rows, what[INPUTS]), np.float32)
    out = numba.carray(pointer(what[OUT]), (rows, width), np.float32)
    item = taken(address)
    while item < what[ITEMS]:
        _multiply(weight, scale, x, out, item * OUTPUTS, min((item + 1) * OUTPUTS, width))
        item = taken(address)


@compiled
def _multiply(
    weight: Any, scale: NDArray[np.float32], x: NDArray[np.float32], out: NDArray[np.float32], first: int, last: int
) -> None:
    """Outputs `first` to `last` - 1 of all rows, four at a time: the last ones again where fewer are left, so that all
    go through the same sums."""
    rows = len(x)
    for a in range(0, rows, 4):
        b, c, d = min(a + 1, rows - 1), min(a + 2, rows - 1), min(a + 3, rows - 1)
        x_a, x_b, x_c, x_d = x[a], x[b], x[c], x[d]
        for output in range(first, last):
            row = weight[output]
            s_a = s_b = s_c = s_d = np.float32(0.0)
            for i in range(len(row)):
                w = np.float32(row[i])
                s_a += w * x_a[i]
                s_b += w * x_b[i]
                s_c += w * x_c[i]
                s_d += w * x_d[i]
            factor = scale[output]
            out[a, output], out[b, output] = s_a * factor, s_b * factor
            out[c, output], out[d, output] = s_c * factor, s_d * factor


@Shared
def _by_float32(address: int) -> None:
    what = numba.carray(pointer(address), WIDTH + 1, np.int64)
    _share(address, numba.carray(pointer(what[WEIGHT]), (what[WIDTH], what[INPUTS]), np.float32))


@Shared
def _by_int8(address: int) -> None:
    what = numba.carray(pointer(address), WIDTH + 1, np.int64)
    _share(address, numba.carray(pointer(what[WEIGHT]), (what[WIDTH], what[INPUTS]), np.int8))


_MULTIPLY = {torch.float32: _by_float32, torch.int8: _by_int8}
