"""The compiled loops between a decoder's products, against torch's attention, on however many threads."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from adasd.kernels.team import Program, Step
from adasd.runtime import fused, pointwise
from adasd.runtime.attention import Attention, Span, attend
from adasd.runtime.fused import FEW, REACH, SOME, Sweep
from adasd.runtime.kv import SessionKV
from adasd.runtime.pointwise import BLOCK
from tests.threads import threads_of_torch

HEADS, KEY_HEADS, WIDTH, LAYERS = 6, 2, 48, 2
SCALE = WIDTH**-0.5
LENGTHS = [(0, 3), (17, 1), (70, FEW), (5, FEW + 2), (5, SOME + 1), (0, SOME), (REACH // SOME, SOME), (2500, FEW)]
"""Positions that a session holds, tokens that it reads."""
MANY = [(5, SOME + 1), (REACH // SOME, SOME)]
"""Those of them that are left to torch."""


@pytest.fixture(params=[1, 2, 3])
def threads(request: pytest.FixtureRequest) -> Iterator[None]:
    with threads_of_torch(request.param):
        yield


def random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def held(length: int, more: int) -> SessionKV:
    kv = SessionKV(LAYERS)
    kv.reserve(length + more, 4096)
    for layer in range(LAYERS):
        kv.write(layer, random(KEY_HEADS, length, WIDTH) + layer, random(KEY_HEADS, length, WIDTH) - layer)
    kv.length = length
    return kv


def spans_of(lengths: list[tuple[int, int]]) -> list[Span]:
    ends = np.cumsum([tokens for _, tokens in lengths]).tolist()
    return [Span(held(*one), end - one[1], end) for one, end in zip(lengths, ends, strict=True)]


def rotations() -> np.ndarray:
    angles = np.arange(4096)[:, None] * (0.5 ** np.arange(WIDTH // 2))
    return np.stack([np.cos(angles), np.sin(angles)], -1).astype(np.float32)


def run(step: Step, places: dict[str, int], **numbers: int) -> None:
    program = Program([step])
    for name, number in numbers.items():
        program.numbers[0, places[name]] = number
    program.run(0, 1)


def attended(spans: list[Span], layer: int, qkv: torch.Tensor, heads: int = HEADS) -> torch.Tensor:
    """What the few have read; queries and keys are turned in place."""
    out, turns, scale = torch.zeros(len(qkv), heads, WIDTH), rotations(), np.array([SCALE], dtype=np.float32)
    sweep = Sweep(spans, KEY_HEADS, WIDTH)
    told = dict(sweep.numbers()) | {"qkv": qkv.data_ptr(), "read": out.data_ptr(), "tokens": len(qkv)}
    program = Program([fused.read((heads, KEY_HEADS, WIDTH), turns, scale)] * LAYERS)
    for name, number in told.items():
        program.numbers[:, fused.PLACES_OF[name]] = number
    program.run(layer, layer + 1)
    return out


def read(lengths: list[tuple[int, int]], layer: int) -> tuple[list[Span], torch.Tensor, torch.Tensor]:
    """The spans, their qkv as the step left them, and what the few have read."""
    spans = spans_of(lengths)
    qkv = random(spans[-1].end, HEADS + 2 * KEY_HEADS, WIDTH).contiguous()
    return spans, qkv, attended(spans, layer, qkv)


def gated(both: torch.Tensor) -> torch.Tensor:
    tokens, width = len(both), both.shape[1] // 2
    out = torch.empty(tokens, width)
    told = {"both": both.data_ptr(), "gated": out.data_ptr(), "tokens": tokens, "blocks": pointwise.blocks(tokens)}
    run(pointwise.gates(width), pointwise.PLACES_OF_GATES, **told)
    return out


def normed(x: torch.Tensor, addend: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    out, epsilon, places = torch.empty_like(x), np.array([1e-5], dtype=np.float32), pointwise.PLACES_OF_NORM
    tensors = {"x": x, "addend": addend, "normed": out}
    told = {name: tensor.data_ptr() for name, tensor in tensors.items()}
    sizes = {"tokens": len(x), "blocks": pointwise.blocks(len(x))}
    run(pointwise.norm(weight, epsilon), places | {"addend": pointwise.ADDEND}, **told, **sizes)
    return out


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("layer", range(LAYERS))
def test_what_is_read_is_what_torch_reads(layer: int) -> None:
    spans, qkv, out = read(LENGTHS, layer)
    for span in spans:
        keys, values = span.kv.read(layer, span.reach)
        torch.testing.assert_close(
            keys[:, span.kv.length :], qkv[span.start : span.end, HEADS:-KEY_HEADS].transpose(0, 1)
        )
        torch.testing.assert_close(values[:, span.kv.length :], qkv[span.start : span.end, -KEY_HEADS:].transpose(0, 1))
        if (span.kv.length, span.end - span.start) in MANY:
            assert not out[span.start : span.end].any()
            continue
        expected = attend(qkv[span.start : span.end, :HEADS].contiguous(), keys, values, Attention(SCALE))
        torch.testing.assert_close(out[span.start : span.end].flatten(1), expected, rtol=1e-5, atol=1e-6)


def test_positions_turn_queries_and_keys_and_leave_values() -> None:
    spans, qkv, _ = read([(3, 2)], 0)
    given = random(2, HEADS + 2 * KEY_HEADS, WIDTH)
    turned = torch.view_as_complex(given.view(2, -1, WIDTH // 2, 2)) * torch.view_as_complex(
        torch.from_numpy(rotations()[3:5])
    ).unsqueeze(1)
    torch.testing.assert_close(qkv[:, :-KEY_HEADS], torch.view_as_real(turned).flatten(2)[:, :-KEY_HEADS])
    assert torch.equal(qkv[:, -KEY_HEADS:], given[:, -KEY_HEADS:])
    assert spans[0].kv.length == 3, "whoever runs the pass moves it"


@pytest.mark.usefixtures("threads")
def test_to_the_last_bit_whatever_the_threads_and_whoever_is_beside() -> None:
    together = read(LENGTHS, 1)
    for number, one in enumerate(LENGTHS):
        span = together[0][number]
        kv = held(*one)
        qkv = random(together[0][-1].end, HEADS + 2 * KEY_HEADS, WIDTH)[span.start : span.end].contiguous()
        with threads_of_torch(1):
            out = attended([Span(kv, 0, one[1])], 1, qkv)
        assert torch.equal(out, together[2][span.start : span.end])


def test_gates_are_sigmoids() -> None:
    both = torch.cat([20 * random(5, 40), torch.tensor([[0.0, -0.0, 90.0, -90.0, 1e-9] * 8])]).contiguous()
    out = gated(both)
    expected = torch.nn.functional.silu(both[:, :20]) * both[:, 20:]
    torch.testing.assert_close(out, expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("fault", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("place", [1, 5])
def test_a_fault_shows_behind_a_gate(fault: float, place: int) -> None:
    both = random(1, 8).contiguous()
    both[0, place] = fault
    out = gated(both)
    assert not out[0, 1].isfinite()
    assert out[0, [0, 2, 3]].isfinite().all()


@pytest.mark.usefixtures("threads")
def test_every_block_of_tokens_is_gated_and_normed() -> None:
    tokens, width = 3 * BLOCK + 1, 24
    both, x, addend, weight = random(tokens, 2 * width), random(tokens, width), random(tokens, width), random(width)
    sums = x + addend
    expected = sums * (sums.square().mean(1, keepdim=True) + 1e-5).rsqrt() * weight
    torch.testing.assert_close(normed(x, addend, weight), expected, rtol=1e-5, atol=1e-6)
    assert torch.equal(x, sums), "the sum is kept"
    torch.testing.assert_close(gated(both), torch.nn.functional.silu(both[:, :width]) * both[:, width:])


def test_heads_of_an_odd_width_are_the_library_s() -> None:
    spans = spans_of([(3, 1), (0, 2)])
    assert Sweep(spans, KEY_HEADS, 24).many == spans
    assert not Sweep(spans, KEY_HEADS, 32).many


@pytest.mark.parametrize("sharing", [1, 2, 4, 5, 8])
def test_any_number_of_heads_may_share_a_key_head(sharing: int) -> None:
    heads, (span,) = sharing * KEY_HEADS, spans_of([(9, 2)])
    qkv = random(2, heads + 2 * KEY_HEADS, WIDTH).contiguous()
    out = attended([span], 1, qkv, heads)
    expected = attend(qkv[:, :heads].contiguous(), *span.kv.read(1, span.reach), Attention(SCALE))
    torch.testing.assert_close(out.flatten(1), expected, rtol=1e-5, atol=1e-6)
