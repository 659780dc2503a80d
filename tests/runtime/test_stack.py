"""Decoder layers as one program, against the same formulas in torch's operations."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor
from torch.nn.functional import linear, silu

from adasd.kernels.products import Matrix
from adasd.runtime.attention import Attention, Span, attend
from adasd.runtime.fused import SOME
from adasd.runtime.kv import SessionKV
from adasd.runtime.linear import Product
from adasd.runtime.stack import Layer, Sizes, Stack, Weights

LAYERS, EPSILON, VOCABULARY = 3, 1e-5, 90
EVEN, ODD = Sizes(48, 32, 3, 1, 16), Sizes(20, 12, 2, 1, 10)
"""Rows of ODD widths are padded for the loops, its heads left to the library."""
PASSES = [(0, 5), (2, 8), (10, 1), (11, 1), (12, SOME + 9), (21 + SOME, 2), (3, 4)]
"""Of one session: positions that count, and tokens that it reads; some take back what was read."""


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


class Reference:
    """Weights, and what a decoder makes of them."""

    def __init__(self, sizes: Sizes) -> None:
        self.sizes = sizes
        qkv, read = (sizes.heads + 2 * sizes.key_heads) * sizes.width, sizes.heads * sizes.width
        shapes = (
            (qkv, sizes.hidden),
            (sizes.hidden, read),
            (2 * sizes.between, sizes.hidden),
            (sizes.hidden, sizes.between),
        )
        self.weights = [[random(*shape) / shape[1] ** 0.5 + 0.01 * n for shape in shapes] for n in range(LAYERS)]
        self.biases = [[random(shape[0]) for shape in shapes] for _ in range(LAYERS)]
        self.norms = [(1 + random(sizes.hidden) / 9, 1 - random(sizes.hidden) / 9) for _ in range(LAYERS)]
        self.embedding, self.norm = random(VOCABULARY, sizes.hidden), 2 + random(sizes.hidden)
        self.head, self.head_bias = random(71, sizes.hidden) / sizes.hidden**0.5, random(71)
        angles = torch.arange(256)[:, None] * 0.5 ** torch.arange(sizes.width // 2)
        self.rotations = torch.stack([angles.cos(), angles.sin()], -1)

    def stack(self, library: str) -> Stack:
        """library: the products that are torch's, by their letters: q, o, g, d, and h of the head."""

        def product(letter: str, weight: Tensor, bias: Tensor) -> Product:
            return partial(linear, weight=weight, bias=bias) if letter in library else Matrix(weight, bias=bias)

        made = [
            [product(*one) for one in zip("qogd", *both, strict=True)]
            for both in zip(self.weights, self.biases, strict=True)
        ]
        layers = [
            Layer(norms[0], qkv, output, norms[1], gate_up, down)
            for norms, (qkv, output, gate_up, down) in zip(self.norms, made, strict=True)
        ]
        weights = Weights(self.embedding, layers, self.norm, product("h", self.head, self.head_bias), len(self.head))
        return Stack(weights, self.sizes, EPSILON, self.rotations.numpy())

    def __call__(self, ids: list[int], start: int, kv: SessionKV) -> Tensor:
        """Logits of all."""
        x, kv.length = self.embedding[ids], start
        for index in range(LAYERS):
            (qkv, output, gate_up, down), biases = self.weights[index], self.biases[index]
            heads = linear(self._normed(x, self.norms[index][0]), qkv, biases[0]).view(len(x), -1, self.sizes.width)
            x = x + linear(self._read(index, heads, start, kv), output, biases[1])
            gate, up = linear(self._normed(x, self.norms[index][1]), gate_up, biases[2]).chunk(2, 1)
            x = x + linear(silu(gate) * up, down, biases[3])
        return linear(self._normed(x, self.norm), self.head, self.head_bias)

    def _read(self, index: int, heads: Tensor, start: int, kv: SessionKV) -> Tensor:
        turns = torch.view_as_complex(self.rotations[start : start + len(heads)])[:, None]
        pairs = torch.view_as_complex(heads.reshape(*heads.shape[:2], -1, 2))
        turned = torch.view_as_real(pairs * turns).flatten(2)
        kv.write(index, turned[:, self.sizes.heads : -1].transpose(0, 1), heads[:, -1:].transpose(0, 1))
        keys, values = kv.read(index, start + len(heads))
        return attend(turned[:, : self.sizes.heads].contiguous(), keys, values, Attention(self.sizes.width**-0.5))

    def _normed(self, x: Tensor, weight: Tensor) -> Tensor:
        return x * (x.square().mean(1, keepdim=True) + EPSILON).rsqrt() * weight


def empty() -> SessionKV:
    kv = SessionKV(LAYERS)
    kv.reserve(200, 256)
    return kv


def some(count: int, number: int) -> list[int]:
    return torch.randint(VOCABULARY, (count,), generator=torch.Generator().manual_seed(number)).tolist()


@pytest.mark.parametrize("sizes", [EVEN, ODD])
@pytest.mark.parametrize("library", ["", "qogdh", "q", "o", "g", "d", "odh"])
def test_passes_are_those_of_torch_s_operations(sizes: Sizes, library: str) -> None:
    reference = Reference(sizes)
    stack, own, other = reference.stack(library), empty(), empty()
    for number, (start, tokens) in enumerate(PASSES):
        ids, own.length = some(tokens, number), start
        expected = reference(ids, start, other)
        for rows in ([*range(tokens)], [tokens - 1], [], [tokens - 1, 0]):
            out = stack.read(ids, [Span(own, 0, tokens)], rows)
            torch.testing.assert_close(out, expected[rows], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("library", ["", "qogdh"])
def test_sessions_of_a_pass_are_told_apart(library: str) -> None:
    reference = Reference(EVEN)
    lengths = [3, SOME + 1, 1, 8]
    ends = torch.tensor(lengths).cumsum(0).tolist()
    ids, kvs = some(ends[-1], 0), [empty() for _ in lengths]
    spans = [Span(kv, end - length, end) for kv, end, length in zip(kvs, ends, lengths, strict=True)]
    out = reference.stack(library).read(ids, spans, range(ends[-1]))
    for span in spans:
        expected = reference(ids[span.start : span.end], 0, empty())
        torch.testing.assert_close(out[span.start : span.end], expected, rtol=1e-4, atol=1e-4)


def test_logits_are_kept_whatever_is_read_after_them() -> None:
    stack, kv = Reference(EVEN).stack(""), empty()
    first = stack.read([1, 2], [Span(kv, 0, 2)], [1])
    kept = first.clone()
    stack.read([3, 4], [Span(kv, 0, 2)], [1])
    assert torch.equal(first, kept)


def test_of_no_tokens_there_are_no_logits() -> None:
    assert Reference(EVEN).stack("").read([], [], []).shape == (0, 71)


@pytest.mark.parametrize("unknown", [-1, VOCABULARY])
def test_an_id_without_embedding_is_refused(unknown: int) -> None:
    stack, kv = Reference(EVEN).stack(""), empty()
    with pytest.raises(IndexError):
        stack.read([1, unknown], [Span(kv, 0, 2)], [1])
    assert stack.read([1, 2], [Span(kv, 0, 2)], [1]).isfinite().all()
