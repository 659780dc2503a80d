"""What a decoder layer does to every number by itself, and the norms, compiled for the CPU: steps of a program.

Few tokens are done by one thread; the threads of the products share the blocks of many.
"""

from __future__ import annotations

import numba
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adasd.kernels.compiled import compiled
from adasd.kernels.exponentials import exponentials
from adasd.kernels.team import FIRST, ITEMS, Shared, Step, pointer, taken

BLOCK = 16
"""Tokens that a thread takes at a time."""

Floats = NDArray[np.float32]

X, ADDEND, WEIGHT, NORMED, EPSILON, TOKENS, WIDTH = range(FIRST, FIRST + 7)
"""Places in the order of `norm`: addresses, then sizes."""

PLACES_OF_NORM = {"x": X, "normed": NORMED, "tokens": TOKENS, "blocks": ITEMS}
"""What is to be filled in, and ADDEND."""

TABLE, WHICH, CHOSEN, COUNT, CHOSEN_WIDTH = range(FIRST, FIRST + 5)
"""Places in the order of `choice`, likewise."""

BOTH, OUT, GATED, HALF = range(FIRST, FIRST + 4)
"""Places in the order of `gates`, likewise; GATED are the tokens."""

PLACES_OF_GATES = {"both": BOTH, "gated": OUT, "tokens": GATED, "blocks": ITEMS}
"""What is to be filled in."""


def choice(width: int) -> Step:
    """A step: some rows of a table, one for each of COUNT numbers. ITEMS are their blocks.

    TABLE: float32 [.., width]. WHICH: int64 [count]. CHOSEN: float32 [count, width].
    """
    return _chosen, (0, 0, 0, 0, 0, width)


def norm(weight: Tensor, epsilon: Floats) -> Step:
    """A step: x += addend, then RMSNorm of it. weight: float32 [width]. epsilon: [1]. Both must outlive the program.

    x, addend and normed: float32 [tokens, width].
    """
    assert weight.dtype == torch.float32, "it is told by its address"
    assert weight.is_contiguous(), "likewise"
    return _add_normed, (0, 0, 0, weight.data_ptr(), 0, epsilon.ctypes.data, 0, len(weight))


def gates(width: int) -> Step:
    """A step: SiLU of the first half of every row, times the second.

    both: float32 [tokens, 2 width]. gated: [tokens, width].
    """
    return _gated, (0, 0, 0, 0, width)


def blocks(tokens: int) -> int:
    """Items of these steps."""
    return -(-tokens // BLOCK)


@Shared
def _chosen(address: int) -> None:
    what = numba.carray(pointer(address), CHOSEN_WIDTH + 1, np.int64)
    count, width = what[COUNT], what[CHOSEN_WIDTH]
    which = numba.carray(pointer(what[WHICH]), count, np.int64)
    chosen = numba.carray(pointer(what[CHOSEN]), (count, width), np.float32)
    block = taken(address)
    while block < what[ITEMS]:
        for row in range(block * BLOCK, min((block + 1) * BLOCK, count)):
            chosen[row] = numba.carray(pointer(what[TABLE] + which[row] * width * chosen.itemsize), width, np.float32)
        block = taken(address)


@Shared
def _add_normed(address: int) -> None:
    what = numba.carray(pointer(address), WIDTH + 1, np.int64)
    rows, width = what[TOKENS], what[WIDTH]
    x = numba.carray(pointer(what[X]), (rows, width), np.float32)
    addend = numba.carray(pointer(what[ADDEND]), (rows, width), np.float32)
    weight = numba.carray(pointer(what[WEIGHT]), width, np.float32)
    normed = numba.carray(pointer(what[NORMED]), (rows, width), np.float32)
    epsilon = numba.carray(pointer(what[EPSILON]), 1, np.float32)[0]
    block = taken(address)
    while block < what[ITEMS]:
        for token in range(block * BLOCK, min((block + 1) * BLOCK, rows)):
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
    rows, width = what[GATED], what[HALF]
    both = numba.carray(pointer(what[BOTH]), (rows, 2 * width), np.float32)
    out = numba.carray(pointer(what[OUT]), (rows, width), np.float32)
    powers = np.empty(width, np.int32)
    block = taken(address)
    while block < what[ITEMS]:
        for token in range(block * BLOCK, min((block + 1) * BLOCK, rows)):
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
