"""Products of rows with a matrix on the CPU: few rows at the speed at which memory brings the matrix, many at that of
the processor's multiplying.

The threads of torch's products share the outputs (`team.py`); a thread multiplies in tiles (`tiles.py`).
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from adasd.kernels.compiled import as_written
from adasd.kernels.team import FIRST, ITEMS, Order, Shared, Step, pointer, taken
from adasd.kernels.tiles import ROOMY, STEP, tile

LEAST, MOST, SHARES = 12, 96, 4
"""Outputs that a thread takes at a time: a matrix in SHARES for each thread, for whoever is done first takes the next,
but long enough reads in one go (from 48 on all are alike) and tiles that come out even."""

FEW = 2 if ROOMY else 6
"""Up to so many rows are multiplied while a row of floats passes by once, in tiles of one output: memory sees one long
read. More, and rows of bytes, of which memory brings enough anyway, go in tiles of TALL rows and WIDE outputs, which
load least for what they multiply."""

TALL, WIDE = 8 if ROOMY else 4, 3

QUICK = 8 if ROOMY else 4
"""Outputs of a row by itself at a time where the matrix is bytes: as many sums as the processor adds to at once."""

ROWS = 64 if ROOMY else 32
"""That go by together while WIDE outputs stay in the fastest cache: their inputs fit the second one."""

AT_ONCE = TALL * (WIDE - 1)
"""Up to so many rows make fewer tiles than there are outputs in one, so that each asks memory for all of the next."""

AHEAD = 384 if ROOMY else 192
"""Weights by which memory is asked for a row of floats before few rows need it (of 128 to 320 the best on AVX2)."""

WEIGHT, SCALE, BIAS, X, OUT, TOKENS, INPUTS, WIDTH, OUTPUTS = range(FIRST, FIRST + 9)
"""Places in an order: addresses (BIAS may be 0), then sizes; TOKENS are the rows."""

Floats = NDArray[np.float32]
Arrays = tuple[Any, Floats, Floats, Floats]
"""Weight, x, scale, out: see `tile`."""


class Matrix:
    """x -> x W^T, each output times its scale, plus the bias. Sums are float32, each row's in an order of its own: a
    row's result is the same to the last bit, whatever other rows are there.

    weight: float32 or int8 [outputs, inputs]. scale, bias: float32 [outputs]; None: 1, and 0. For one thread at a time.
    """

    def __init__(self, weight: Tensor, scale: Tensor | None = None, bias: Tensor | None = None) -> None:
        self._width, self._inputs = weight.shape
        self._weight = _padded(weight.detach())
        self._scale = torch.ones(len(weight)) if scale is None else scale.detach().contiguous()
        self._bias = None if bias is None else bias.detach().contiguous()
        assert self._weight.dtype in _MULTIPLY, "it is told by its address"
        assert self._scale.dtype == torch.float32, "likewise"
        assert self._bias is None or self._bias.dtype == torch.float32, "likewise"
        self._multiply, numbers = self.step
        self._order = Order(*numbers)

    @property
    def is_whole(self) -> bool:
        """Whether a step reads rows as they are: their length is a multiple of STEP."""
        return self._inputs == self._weight.shape[1]

    @property
    def step(self) -> Step:
        """For a program; X, OUT and TOKENS are to be filled in. The matrix must outlive it."""
        outputs = _outputs(self._width, torch.get_num_threads())
        bias = 0 if self._bias is None else self._bias.data_ptr()
        addresses = self._weight.data_ptr(), self._scale.data_ptr(), bias, 0, 0
        sizes = 0, self._weight.shape[1], self._width, outputs
        return _MULTIPLY[self._weight.dtype], (-(-self._width // outputs), *addresses, *sizes)

    def __call__(self, x: Tensor) -> Tensor:
        """x: float32 [rows, inputs], contiguous; [rows, outputs]."""
        rows, inputs = x.shape
        assert x.dtype == torch.float32, "it is told by its address"
        assert x.is_contiguous(), "likewise"
        assert inputs == self._inputs, "likewise"
        x, out = _padded(x), torch.empty(rows, self._width)
        if rows:
            numbers = self._order.numbers
            numbers[X], numbers[OUT], numbers[TOKENS] = x.data_ptr(), out.data_ptr(), rows
            self._multiply(self._order)
        return out


def _outputs(width: int, threads: int) -> int:
    """That a thread takes of so many at a time."""
    return min(max(-(-width // (SHARES * threads * LEAST)) * LEAST, LEAST), MOST)


def _padded(rows: Tensor) -> Tensor:
    """Contiguous, with zeros up to a multiple of STEP: [rows, inputs] where there is one already."""
    missing = -rows.shape[1] % STEP
    return pad(rows, (0, missing)) if missing else rows.contiguous()


@as_written
def _share(address: int, weight: Any) -> None:
    """Multiply by as many blocks of outputs as the others leave."""
    what = numba.carray(pointer(address), OUTPUTS + 1, np.int64)
    rows, width = what[TOKENS], what[WIDTH]
    scale = numba.carray(pointer(what[SCALE]), width, np.float32)
    x = numba.carray(pointer(what[X]), (rows, what[INPUTS]), np.float32)
    out = numba.carray(pointer(what[OUT]), (rows, width), np.float32)
    arrays = (weight, x, scale, out)
    item = taken(address) if rows > 0 else what[ITEMS]
    while item < what[ITEMS]:
        first, last = item * what[OUTPUTS], min((item + 1) * what[OUTPUTS], width)
        if rows <= FEW and weight.itemsize > 1:
            _few(arrays, first, last)
        elif rows == 1 and weight.itemsize == 1:
            _single(arrays, first, last)
        else:
            multiply(arrays, first, last)
        if what[BIAS] != 0:
            _add(numba.carray(pointer(what[BIAS]), width, np.float32), out, first, last)
        item = taken(address)


@as_written
def _add(bias: Floats, out: Floats, first: int, last: int) -> None:
    for row in range(len(out)):
        for output in range(first, last):
            out[row, output] += bias[output]


@as_written
def _few(arrays: Arrays, first: int, last: int) -> None:
    """Outputs `first` to `last` - 1 of all rows."""
    inputs = arrays[0].shape[1]
    for output in range(first, last):
        tile(FEW, 1, 1, arrays, len(arrays[1]), 0, output, output * inputs + AHEAD)


@as_written
def _single(arrays: Arrays, first: int, last: int) -> None:
    """Outputs `first` to `last` - 1 of a row by itself, asking for the next QUICK."""
    inputs = arrays[0].shape[1]
    whole = last - (last - first) % QUICK
    for output in range(first, whole, QUICK):
        tile(1, QUICK, QUICK, arrays, 1, 0, output, (output + QUICK) * inputs)
    for output in range(whole, last):
        tile(1, 1, 1, arrays, 1, 0, output, output * inputs)


@as_written
def multiply(arrays: Arrays, first: int, last: int) -> None:
    """Outputs `first` to `last` - 1 of any number of rows."""
    rows, whole = len(arrays[1]), last - (last - first) % WIDE
    for begin in range(0, rows, ROWS):
        end = min(begin + ROWS, rows)
        if ROOMY and end - begin > AT_ONCE:
            _by_rows(arrays, first, whole, begin, end)
        else:
            _by_outputs(arrays, first, whole, begin, end)
        _one_by_one(arrays, whole, last, begin, end)


@as_written
def _by_outputs(arrays: Arrays, first: int, last: int, begin: int, end: int) -> None:
    """WIDE outputs after the other, of rows `begin` to `end` - 1. While some rows are multiplied by WIDE outputs memory
    is asked for the next WIDE: all at once where these rows are few, and for bytes, which costs no more."""
    weight, _, _, _ = arrays
    inputs = weight.shape[1]
    at_once = end - begin <= AT_ONCE or weight.itemsize == 1
    for output in range(first, last, WIDE):
        for row in range(begin, end, TALL):
            rows, ahead = min(TALL, end - row), output + WIDE
            if at_once:
                tile(TALL, WIDE, WIDE, arrays, rows, row, output, ahead * inputs)
            else:
                tile(TALL, WIDE, 1, arrays, rows, row, output, (ahead + (row - begin) // TALL % WIDE) * inputs)


@as_written
def _by_rows(arrays: Arrays, first: int, last: int, begin: int, end: int) -> None:
    """TALL rows after the other: where many are multiplied at a time it is they that stay in the fastest cache, while
    the outputs pass by, from memory for the first of them and from the second cache for all others."""
    inputs = arrays[0].shape[1]
    for row in range(begin, end, TALL):
        for output in range(first, last, WIDE):
            tile(TALL, WIDE, WIDE, arrays, min(TALL, end - row), row, output, (output + WIDE) * inputs)


@as_written
def _one_by_one(arrays: Arrays, first: int, last: int, begin: int, end: int) -> None:
    """The outputs that are no WIDE any more."""
    inputs = arrays[0].shape[1]
    for output in range(first, last):
        for row in range(begin, end, TALL):
            tile(TALL, 1, 1, arrays, min(TALL, end - row), row, output, output * inputs)


@Shared
def _by_float32(address: int) -> None:
    what = numba.carray(pointer(address), OUTPUTS + 1, np.int64)
    _share(address, numba.carray(pointer(what[WEIGHT]), (what[WIDTH], what[INPUTS]), np.float32))


@Shared
def _by_int8(address: int) -> None:
    what = numba.carray(pointer(address), OUTPUTS + 1, np.int64)
    _share(address, numba.carray(pointer(what[WEIGHT]), (what[WIDTH], what[INPUTS]), np.int8))


_MULTIPLY = {torch.float32: _by_float32, torch.int8: _by_int8}
