"""What lies between two products of a decoder layer, compiled for the CPU: one call instead of a dozen per session,
shared by the threads of the products.

Every session's sums are taken in an order of their own, so its results do not depend on who else is in the batch.
"""

from __future__ import annotations

from collections.abc import Sequence

import numba
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adasd.kernels.compiled import compiled
from adasd.kernels.team import FIRST, ITEMS, Order, Shared, pointer, taken
from adasd.runtime.attention import Span

FEW, SOME, REACH = 4, 16, 8192
"""Up to FEW tokens of a session these loops beat the library's matrix products, whatever the context; up to SOME where
their product with the positions they see is at most REACH (measured)."""

Floats = NDArray[np.float32]
Places = NDArray[np.int64]


QKV, OUT, BUFFERS, ROTATIONS, SPANS, SCALE, SIZES = range(FIRST, FIRST + 7)
"""Places in the order of `_read`: addresses, then sizes from SIZES on."""


class Sweep:
    """The spans of one pass as arrays. many: spans that `read` does not attend for, as their tokens are too many.

    heads: (heads, key heads, width). rotations: [positions, width / 2, 2], cos and sin. scale: of the products.
    """

    def __init__(self, spans: Sequence[Span], heads: tuple[int, int, int], rotations: Floats, scale: float) -> None:
        few = [_are_few(span.end - span.start, span.reach) for span in spans]
        self.many = [span for span, is_few in zip(spans, few, strict=True) if not is_few]
        places = [
            (span.start, span.end, span.kv.length, span.kv.capacity, is_few)
            for span, is_few in zip(spans, few, strict=True)
        ]
        buffers = np.stack([span.kv.addresses(heads[1:]) for span in spans]).transpose(1, 0, 2)
        turns = np.ascontiguousarray(rotations, dtype=np.float32)
        self._arrays = turns, np.array(places, dtype=np.int64), np.array([scale], dtype=np.float32)
        self._buffers = np.ascontiguousarray(buffers)
        addresses = [array.ctypes.data for array in (self._buffers, *self._arrays)]
        sizes = spans[-1].end, *heads, len(rotations), len(spans)
        self._order = Order(len(spans) * heads[1], 0, 0, *addresses, *sizes)
        self._first_buffers, self._a_layer = addresses[0], self._buffers.strides[0]

    def read(self, layer: int, qkv: Tensor, out: Tensor) -> None:
        """Turn queries and keys by their positions in place, store keys and values, attend for all but the `many`.

        qkv: [tokens, heads + 2 key heads, width], the queries first. out: [tokens, heads, width]. Both contiguous.
        """
        assert qkv.dtype == out.dtype == torch.float32, "they are told by their addresses"
        assert qkv.is_contiguous(), "likewise"
        assert out.is_contiguous(), "likewise"
        numbers = self._order.numbers
        numbers[QKV], numbers[OUT] = qkv.data_ptr(), out.data_ptr()
        numbers[BUFFERS] = self._first_buffers + layer * self._a_layer
        _read(self._order)


def _are_few(tokens: int, positions: int) -> bool:
    return tokens <= FEW or (tokens <= SOME and tokens * positions <= REACH)


@compiled
def add_normed(x: Floats, addend: Floats, weight: Floats, epsilon: float, out: Floats) -> None:
    """x += addend, then RMSNorm of it into `out`. x, addend, out: [tokens, width]; weight: [width]."""
    width = x.shape[1]
    for token in range(x.shape[0]):
        square = np.float32(0.0)
        for i in range(width):
            value = x[token, i] + addend[token, i]
            x[token, i] = value
            square += value * value
        factor = np.float32(1.0) / np.sqrt(square / np.float32(width) + np.float32(epsilon))
        for i in range(width):
            out[token, i] = x[token, i] * factor * weight[i]


@compiled
def gated(both: Floats, out: Floats) -> None:
    """SiLU of the first half of every row, times the second. both: [tokens, 2 width]; out: [tokens, width]."""
    width = out.shape[1]
    powers = np.empty(width, np.int32)
    for token in range(len(out)):
        gate, up, row = both[token, :width], both[token, width:], out[token]
        for i in range(width):
            row[i] = -abs(gate[i])
        _exponentials(row, powers, np.float32(0.0))
        for i in range(width):
            above = np.float32(1.0) if gate[i] >= np.float32(0.0) else row[i]
            row[i] = gate[i] * above / (np.float32(1.0) + row[i]) * up[i]


@Shared
def _read(address: int) -> None:
    """An item is a key head of a span, with the queries that share it."""
    what = numba.carray(pointer(address), SIZES + 6, np.int64)
    tokens, heads, key_heads = what[SIZES], what[SIZES + 1], what[SIZES + 2]
    width, positions, spans = what[SIZES + 3], what[SIZES + 4], what[SIZES + 5]
    qkv = numba.carray(pointer(what[QKV]), (tokens, heads + 2 * key_heads, width), np.float32)
    out = numba.carray(pointer(what[OUT]), (tokens, heads, width), np.float32)
    buffers = numba.carray(pointer(what[BUFFERS]), (spans, 2), np.int64)
    rotations = numba.carray(pointer(what[ROTATIONS]), (positions, width // 2, 2), np.float32)
    places = numba.carray(pointer(what[SPANS]), (spans, 5), np.int64)
    scale = numba.carray(pointer(what[SCALE]), 1, np.float32)[0]
    item = taken(address)
    while item < what[ITEMS]:
        span, head = item // key_heads, item % key_heads
        shape = (key_heads, places[span, 3], width)
        keys = numba.carray(pointer(buffers[span, 0]), shape, np.float32)[head]
        values = numba.carray(pointer(buffers[span, 1]), shape, np.float32)[head]
        _read_one(qkv, rotations, places[span], head, keys, values, scale, out)
        item = taken(address)


@compiled
def _read_one(
    qkv: Floats,
    rotations: Floats,
    span: Places,
    head: int,
    keys: Floats,
    values: Floats,
    scale: np.float32,
    out: Floats,
) -> None:
    """One key head of one span. keys, values: [capacity, width]."""
    heads = out.shape[1]
    key_heads = (qkv.shape[1] - heads) // 2
    first, last = head * (heads // key_heads), (head + 1) * (heads // key_heads)
    start, end, length = span[0], span[1], span[2]
    for token in range(start, end):
        position = length + token - start
        for query in range(first, last):
            _turn(qkv[token, query], rotations[position])
        _turn(qkv[token, heads + head], rotations[position])
        keys[position] = qkv[token, heads + head]
        values[position] = qkv[token, heads + key_heads + head]
    if span[4]:
        _attend(qkv[start:end], first, last, keys, values, length, scale, out[start:end])


@compiled
def _turn(vector: Floats, rotation: Floats) -> None:
    """Each pair of numbers is a complex one; multiply it by its angle's. vector: [width]."""
    for pair in range(rotation.shape[0]):
        real, imaginary = vector[2 * pair], vector[2 * pair + 1]
        cosine, sine = rotation[pair, 0], rotation[pair, 1]
        vector[2 * pair] = real * cosine - imaginary * sine
        vector[2 * pair + 1] = real * sine + imaginary * cosine


@compiled
def _attend(
    queries: Floats, first: int, last: int, keys: Floats, values: Floats, length: int, scale: np.float32, out: Floats
) -> None:
    """Causal attention of tokens `length` and on, for heads `first` to `last` - 1, which share keys and values.

    queries: [n, heads or more, width]. out: [n, heads, width].
    """
    tokens, width = len(out), out.shape[2]
    weights, powers = np.empty(length + tokens, np.float32), np.empty(length + tokens, np.int32)
    for head in range(first, last):
        for token in range(tokens):
            seen, query, read = length + token + 1, queries[token, head], out[token, head]
            peak = np.float32(-np.inf)
            for j in range(seen):
                product = np.float32(0.0)
                for i in range(width):
                    product += query[i] * keys[j, i]
                weights[j] = product * scale
                peak = max(peak, weights[j])
            total = _exponentials(weights[:seen], powers, peak)
            read[:] = np.float32(0.0)
            for j in range(seen):
                for i in range(width):
                    read[i] += weights[j] * values[j, i]
            for i in range(width):
                read[i] /= total


@compiled
def _exponentials(scores: Floats, powers: NDArray[np.int32], peak: np.float32) -> np.float32:
    """exp(score - peak) in place, to 2e-7 of it; their sum, NaN where a score is no number. powers: room for as many.

    2^t = 2^floor(t) times a polynomial of the fraction (least squares, 2e-9): arithmetic that compiles to vectors.
    """
    total = np.float32(0.0)
    for j in range(len(scores)):
        total += scores[j] * np.float32(0.0)
        exponent = max((scores[j] - peak) * np.float32(1.4426950408889634), np.float32(-126.0))
        whole = np.floor(exponent)
        rest = exponent - whole
        power = np.float32(2.16138082e-4) * rest + np.float32(1.24673764e-3)
        power = power * rest + np.float32(9.67553263e-3)
        power = power * rest + np.float32(5.54852202e-2)
        power = power * rest + np.float32(2.40229325e-1)
        power = power * rest + np.float32(6.93147042e-1)
        powers[j] = (np.int32(whole) + np.int32(127)) << np.int32(23)
        scores[j] = power * rest + np.float32(1.0)
    factors = powers[: len(scores)].view(np.float32)
    for j in range(len(scores)):
        scores[j] *= factors[j]
        total += scores[j]
    return total
