"""What lies between two products of a decoder layer, compiled for the CPU: one call instead of a dozen per session.

Every session's sums are taken in an order of their own, so its results do not depend on who else is in the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numba
import numpy as np
from numba.core import cgutils, types
from numba.extending import intrinsic
from numpy.typing import NDArray

from adasd.kernels.compiled import compiled
from adasd.runtime.attention import Span

FEW = 4
"""Up to so many tokens of a session these loops beat the library's matrix products, whatever the context."""

Floats = NDArray[np.float32]
Places = NDArray[np.int64]


class Sweep:
    """The spans of one pass as arrays. shape: (key heads, width) of the KV. few: spans that `read` attends for."""

    def __init__(self, spans: Sequence[Span], shape: tuple[int, int]) -> None:
        self.few = [span for span in spans if span.end - span.start <= FEW]
        self.many = [span for span in spans if span.end - span.start > FEW]
        self._spans = np.array(
            [(span.start, span.end, span.kv.length, span.kv.capacity) for span in spans], dtype=np.int64
        )
        self._buffers = np.ascontiguousarray(np.stack([span.kv.addresses(shape) for span in spans]).transpose(1, 0, 2))

    def read(self, layer: int, qkv: Floats, rotations: Floats, scale: float, out: Floats) -> None:
        """Turn queries and keys by their positions in place, store keys and values, attend for the `few`.

        qkv: [tokens, heads + 2 key heads, width], the queries first. rotations: [positions, width / 2, 2], cos and sin.
        out: [tokens, heads, width].
        """
        _read(qkv, rotations, self._spans, self._buffers[layer], np.float32(scale), FEW, out)


@intrinsic  # type: ignore[untyped-decorator]
def _pointer(_context: Any, address: Any) -> Any:
    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], cgutils.voidptr_t)

    return types.voidptr(address), generate


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
def _read(
    qkv: Floats, rotations: Floats, spans: Places, buffers: Places, scale: np.float32, few: int, out: Floats
) -> None:
    heads, width = out.shape[1], out.shape[2]
    key_heads = (qkv.shape[1] - heads) // 2
    for span in range(spans.shape[0]):
        start, end, length, capacity = spans[span]
        keys = numba.carray(_pointer(buffers[span, 0]), (key_heads, capacity, width), np.float32)
        values = numba.carray(_pointer(buffers[span, 1]), (key_heads, capacity, width), np.float32)
        for token in range(start, end):
            position = length + token - start
            for head in range(heads + key_heads):
                _turn(qkv[token, head], rotations[position])
            for head in range(key_heads):
                keys[head, position] = qkv[token, heads + head]
                values[head, position] = qkv[token, heads + key_heads + head]
        if end - start <= few:
            _attend(qkv[start:end], keys, values, length, scale, out[start:end])


@compiled
def _turn(vector: Floats, rotation: Floats) -> None:
    """Each pair of numbers is a complex one; multiply it by its angle's. vector: [width]."""
    for pair in range(rotation.shape[0]):
        real, imaginary = vector[2 * pair], vector[2 * pair + 1]
        cosine, sine = rotation[pair, 0], rotation[pair, 1]
        vector[2 * pair] = real * cosine - imaginary * sine
        vector[2 * pair + 1] = real * sine + imaginary * cosine


@compiled
def _attend(queries: Floats, keys: Floats, values: Floats, length: int, scale: np.float32, out: Floats) -> None:
    """Causal attention of tokens `length` and on. queries: [n, heads or more, width]; out: [n, heads, width]."""
    tokens, heads, width = out.shape
    shared = heads // keys.shape[0]
    weights, powers = np.empty(length + tokens, np.float32), np.empty(length + tokens, np.int32)
    for head in range(heads):
        own_keys, own_values = keys[head // shared], values[head // shared]
        for token in range(tokens):
            seen, query, read = length + token + 1, queries[token, head], out[token, head]
            peak = np.float32(-np.inf)
            for j in range(seen):
                product = np.float32(0.0)
                for i in range(width):
                    product += query[i] * own_keys[j, i]
                weights[j] = product * scale
                peak = max(peak, weights[j])
            total = _exponentials(weights[:seen], powers, peak)
            read[:] = np.float32(0.0)
            for j in range(seen):
                for i in range(width):
                    read[i] += weights[j] * own_values[j, i]
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
