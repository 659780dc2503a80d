"""Decoder layers as one program, against the same formulas in torch's operations."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn.functional import linear, silu

from adasd.kernels.products import Matrix
from adasd.runtime.attention import Attention, Span, attend
from adasd.runtime.fused import SOME
from adasd.runtime.kv import SessionKV
from adasd.runtime.linear import Plain, Product
from adasd.runtime.stack import Layer, Sizes, Stack

LAYERS, EPSILON = 3, 1e-5
EVEN, ODD = Sizes(48, 32, 3, 1, 16), Sizes(20, 12, 2, 1, 10)
"""Rows of ODD widths are padded for the loops, its heads left to the library."""
PASSES = [(0, 5), (2, 8), (10, 1), (11, 1), (12, SOME + 9), (21 + SOME, 2), (3, 4)]
"""Of one session: positions that count, and tokens that it reads; some take back what was read."""


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def loops(weight: Tensor, bias: Tensor) -> Product:
    return Matrix(weight, bias=bias)


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
        self.norm = 2 + random(sizes.hidden)
        angles = torch.arange(256)[:, None] * 0.5 ** torch.arange(sizes.width // 2)
        self.rotations = torch.stack([angles.cos(), angles.sin()], -1)

    def layers(self, library: str) -> list[Layer]:
        """library: the products that are torch's, by their letters: q, o, g, d."""
        made = [
            [
                Plain(weight, bias) if letter in library else loops(weight, bias)
                for letter, weight, bias in zip("qogd", *both, strict=True)
            ]
            for both in zip(self.weights, self.biases, strict=True)
        ]
        return [
            Layer(norms[0], qkv, output, norms[1], gate_up, down)
            for norms, (qkv, output, gate_up, down) in zip(self.norms, made, strict=True)
        ]

    def __call__(self, x: Tensor, start: int, kv: SessionKV) -> Tensor:
        kv.length = start
        for index in range(LAYERS):
            (qkv, output, gate_up, down), biases = self.weights[index], self.biases[index]
            heads = linear(self._normed(x, self.norms[index][0]), qkv, biases[0]).view(len(x), -1, self.sizes.width)
            x = x + linear(self._read(index, heads, start, kv), output, biases[1])
            gate, up = linear(self._normed(x, self.norms[index][1]), gate_up, biases[2]).chunk(2, 1)
            x = x + linear(silu(gate) * up, down, biases[3])
        return self._normed(x, self.norm)

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


@pytest.mark.parametrize("sizes", [EVEN, ODD])
@pytest.mark.parametrize("library", ["", "qogd", "q", "o", "g", "d", "od"])
def test_passes_are_those_of_torch_s_operations(sizes: Sizes, library: str) -> None:
    reference = Reference(sizes)
    stack = Stack(reference.layers(library), reference.norm, sizes, EPSILON, reference.rotations.numpy())
    own, other = empty(), empty()
    for number, (start, tokens) in enumerate(PASSES):
        x = random(tokens, sizes.hidden) + number
        own.length = start
        out = stack.read(x.clone(), [Span(own, 0, tokens)]).clone()
        torch.testing.assert_close(out, reference(x, start, other), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("library", ["", "qogd"])
def test_sessions_of_a_pass_are_told_apart(library: str) -> None:
    reference = Reference(EVEN)
    stack = Stack(reference.layers(library), reference.norm, EVEN, EPSILON, reference.rotations.numpy())
    lengths = [3, SOME + 1, 1, 8]
    ends = torch.tensor(lengths).cumsum(0).tolist()
    x, kvs = random(ends[-1], EVEN.hidden), [empty() for _ in lengths]
    spans = [Span(kv, end - length, end) for kv, end, length in zip(kvs, ends, lengths, strict=True)]
    out = stack.read(x, spans)
    for span in spans:
        expected = reference(x[span.start : span.end], 0, empty())
        torch.testing.assert_close(out[span.start : span.end], expected, rtol=1e-4, atol=1e-4)
