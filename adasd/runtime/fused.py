"""Attention of a decoder layer, compiled for the CPU: a step of a program, shared by the threads of the products.

Every session's sums are taken in an order of their own, so its results do not depend on who else is in the batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numba
import numpy as np
from numpy.typing import NDArray

from adasd.kernels.compiled import as_written, compiled
from adasd.kernels.exponentials import exponentials
from adasd.kernels.products import multiply
from adasd.kernels.team import FIRST, ITEMS, Shared, Step, pointer, taken
from adasd.kernels.tiles import LANES, STEP, mixture
from adasd.runtime.attention import Span

FEW, SOME, REACH = 8, 64, 8192
"""Up to FEW tokens of a session these loops beat the library's matrix products, whatever the context; up to SOME where
their product with the positions they see is at most REACH (measured). Heads whose width is no multiple of STEP are the
library's."""

LENGTH = 2
"""Place in a span's numbers: positions in its KV."""

MIXED = 3
"""Rows that one tile mixes."""

Floats = NDArray[np.float32]
Places = NDArray[np.int64]

QKV, OUT, BUFFERS, PLACES, ROTATIONS, SCALE = range(FIRST, FIRST + 6)
TOKENS, SPANS, HEADS, KEY_HEADS, WIDTH, POSITIONS = range(SCALE + 1, SCALE + 7)
"""Places in an order: addresses, then sizes."""

PLACES_OF = {"qkv": QKV, "read": OUT, "kv": BUFFERS, "places": PLACES, "tokens": TOKENS, "spans": SPANS, "heads": ITEMS}
"""What is to be filled in."""


def read(heads: tuple[int, int, int], rotations: Floats, scale: Floats) -> Step:
    """A step: turn queries and keys by their positions in place, store keys and values, attend for all but the `many`.

    heads: (heads, key heads, width). rotations: [positions, width / 2, 2], cos and sin. scale: of the products, [1].
    Both must outlive the program. To be filled in: qkv, [tokens, heads + 2 key heads, width], the queries first; read,
    [tokens, heads, width]; tokens; the rest a `Sweep` tells.
    """
    assert rotations.dtype == scale.dtype == np.float32, "they are told by their addresses"
    assert rotations.flags.c_contiguous, "likewise"
    addresses = 0, 0, 0, 0, rotations.ctypes.data, scale.ctypes.data
    return _read, (0, *addresses, 0, 0, *heads, len(rotations))


class Sweep:
    """The spans of one pass as arrays. many: spans that `read` does not attend for, as their tokens are too many.

    key_heads, width: of a span's KV.
    """

    def __init__(self, spans: Sequence[Span], key_heads: int, width: int) -> None:
        few = [suits(width) and _are_few(span.end - span.start, span.reach) for span in spans]
        self.many = [span for span, is_few in zip(spans, few, strict=True) if not is_few]
        self._places = np.array(
            [
                (span.start, span.end, span.kv.length, span.kv.capacity, is_few)
                for span, is_few in zip(spans, few, strict=True)
            ],
            dtype=np.int64,
        )
        buffers = np.stack([span.kv.addresses((key_heads, width)) for span in spans]).transpose(1, 0, 2)
        self._buffers = np.ascontiguousarray(buffers)
        self._items = len(spans) * key_heads

    @property
    def first_length(self) -> int:
        """Address of the number of positions in the first span's KV, which a program may change."""
        return int(self._places[0, LENGTH:].ctypes.data)

    def numbers(self) -> Iterator[tuple[str, int | Places]]:
        """What the steps are told, good as long as this is kept. kv: by layer, where the spans' buffers stand."""
        yield "kv", self._buffers.ctypes.data + self._buffers.strides[0] * np.arange(len(self._buffers))
        yield "places", self._places.ctypes.data
        yield "spans", len(self._places)
        yield "heads", self._items


def suits(width: int) -> bool:
    """Whether heads of this width are attended for here."""
    return width % STEP == 0


def _are_few(tokens: int, positions: int) -> bool:
    return tokens <= FEW or (tokens <= SOME and tokens * positions <= REACH)


@Shared
def _read(address: int) -> None:
    """An item is a key head of a span, with the queries that share it."""
    what = numba.carray(pointer(address), POSITIONS + 1, np.int64)
    tokens, heads, key_heads, width = what[TOKENS], what[HEADS], what[KEY_HEADS], what[WIDTH]
    qkv = numba.carray(pointer(what[QKV]), (tokens, heads + 2 * key_heads, width), np.float32)
    out = numba.carray(pointer(what[OUT]), (tokens, heads, width), np.float32)
    buffers = numba.carray(pointer(what[BUFFERS]), (what[SPANS], 2), np.int64)
    rotations = numba.carray(pointer(what[ROTATIONS]), (what[POSITIONS], width // 2, 2), np.float32)
    places = numba.carray(pointer(what[PLACES]), (what[SPANS], 5), np.int64)
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
    start, end, length = span[0], span[1], span[LENGTH]
    for token in range(start, end):
        position = length + token - start
        for query in range(first, last):
            _turn(qkv[token, query], rotations[position])
        _turn(qkv[token, heads + head], rotations[position])
        keys[position] = qkv[token, heads + head]
        values[position] = qkv[token, heads + key_heads + head]
    if span[4]:
        _attend(qkv[start:end], first, last, keys, values, length, scale, out[start:end])


@as_written
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
    tokens, heads, width = len(out), last - first, out.shape[2]
    rows, scores = (
        np.empty((tokens * heads, width), np.float32),
        np.empty((tokens * heads, length + tokens), np.float32),
    )
    for token in range(tokens):
        rows[token * heads : (token + 1) * heads] = queries[token, first:last]
    multiply((keys, rows, np.full(length + tokens, scale), scores), 0, length + tokens)
    powers, factors = np.empty(length + tokens, np.int32), np.empty(len(rows), np.float32)
    for row in range(len(rows)):
        seen = scores[row, : length + row // heads + 1]
        factors[row] = np.float32(1.0) / exponentials(seen, powers, _peak(seen))
    for token in range(tokens):
        _mix((scores, values, factors, rows), token * heads, (token + 1) * heads, length + token + 1)
        out[token, first:last] = rows[token * heads : (token + 1) * heads]


@compiled
def _peak(scores: Floats) -> np.float32:
    peak = np.float32(-np.inf)
    for j in range(len(scores)):
        peak = max(peak, scores[j])
    return peak


@as_written
def _mix(arrays: tuple[Floats, Floats, Floats, Floats], first: int, last: int, count: int) -> None:
    """Rows `first` to `last` - 1 of `mixture`, all columns: as many as two of the vectors that it takes, or several."""
    width = arrays[3].shape[1]
    for row in range(first, last, MIXED):
        for column in range(0, width - 3 * LANES, 4 * LANES):
            mixture(MIXED, 4, arrays, min(MIXED, last - row), row, column, count)
        if width % (4 * LANES):
            mixture(MIXED, 2, arrays, min(MIXED, last - row), row, width - 2 * LANES, count)
