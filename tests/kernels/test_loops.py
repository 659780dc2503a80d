"""The loops for the CPU against torch's own arithmetic, and against the definition of a draw."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from adasd.core.rows import PointRow, dense_row, sparse_row
from adasd.core.types import Row, SamplingParams
from adasd.kernels import drawing, loops
from adasd.kernels.warping import Warped, mass_and_entropy, warp
from adasd.kernels.whole import Whole
from tests.threads import threads_of_torch

WIDTHS = [1, 5, loops.BLOCK - 1, loops.BLOCK, loops.BLOCK + 1, 3000]
SAMPLINGS = [
    SamplingParams(temperature=0.8),
    SamplingParams(temperature=1e-3),
    SamplingParams(temperature=2.0, top_k=40),
    SamplingParams(top_p=0.9),
    SamplingParams(temperature=1.3, min_p=0.05, top_k=200),
]


def rows_of(width: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    logits = torch.randn(3, width, generator=torch.Generator().manual_seed(width), dtype=torch.float64) * 6
    logits[1, width // 2 :] = -math.inf
    logits[1, 0] = 0.0
    return logits.to(dtype)


def torch_warp(logits: torch.Tensor, sampling: SamplingParams, monkeypatch: pytest.MonkeyPatch) -> Warped:
    with monkeypatch.context() as patched:
        patched.setattr(loops, "take", lambda logits: False)
        return warp(logits, sampling)[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("temperature", [0.7, 1e-3, 5e-324, 50.0])
@pytest.mark.parametrize("width", WIDTHS)
def test_sums_are_those_of_torch(
    width: int, temperature: float, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    logits = rows_of(width, dtype)
    peak = logits.amax(-1, keepdim=True).to(torch.float64)
    mass, entropy = mass_and_entropy(logits, peak, temperature)
    monkeypatch.setattr(loops, "take", lambda logits: False)
    expected_mass, expected_entropy = mass_and_entropy(logits, peak, temperature)
    torch.testing.assert_close(mass, expected_mass, rtol=1e-13, atol=0.0)
    torch.testing.assert_close(entropy, expected_entropy, rtol=1e-11, atol=1e-11)


def taken(logits: torch.Tensor) -> list[Row | None]:
    """Rows to take away: none, one id, a few, all of them, and exactly what there is."""
    width = logits.shape[-1]
    rng = np.random.default_rng(width)
    few = rng.choice(width, size=min(width, 40), replace=False)
    q = rng.dirichlet(np.full(width, 0.3))
    return [None, PointRow(int(logits[0].argmax())), sparse_row(few, rng.dirichlet(np.ones(len(few)))), dense_row(q)]


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
@pytest.mark.parametrize("width", WIDTHS)
def test_draws_are_those_of_torch(width: int, sampling: SamplingParams, monkeypatch: pytest.MonkeyPatch) -> None:
    logits = rows_of(width)
    ours, theirs = warp(logits, sampling)[0], torch_warp(logits, sampling, monkeypatch)
    uniforms = [0.0, 1e-12, *np.linspace(0.01, 0.99, 23).tolist()]
    for minus in taken(logits):
        for offset in range(3):
            drawn = [ours.draw(offset, minus, uniform) for uniform in uniforms]
            with monkeypatch.context() as patched:
                patched.setattr(loops, "take", lambda logits: False)
                assert drawn == [theirs.draw(offset, minus, uniform) for uniform in uniforms]


@pytest.mark.parametrize("uniform", [0.0, 0.5, math.nextafter(1.0, 0.0)])
def test_nothing_of_probability_zero_is_ever_drawn(uniform: float) -> None:
    """A residual far down the row, and one that is empty, where p itself is drawn from."""
    logits = torch.full((1, 2000), -math.inf)
    logits[0, 3] = logits[0, 1700] = 1.0
    warped = warp(logits, SamplingParams())[0]
    assert warped.draw(0, PointRow(3), uniform) == 1700
    everything = sparse_row(np.array([3, 1700]), np.array([0.5, 0.5]))
    assert warped.draw(0, everything, uniform) == (3 if uniform < 0.5 else 1700)


def test_draws_follow_the_distribution() -> None:
    logits = rows_of(700)
    warped = warp(logits, SamplingParams(temperature=0.9))[0]
    p = torch.softmax(logits[0].double() / 0.9, -1).numpy()
    uniforms = (np.arange(40_000) + 0.5) / 40_000
    counts = np.bincount([warped.draw(0, None, float(uniform)) for uniform in uniforms], minlength=700)
    assert np.abs(counts / 40_000 - p).max() < 1.1 / 40_000


def test_a_row_is_summed_alike_whoever_is_beside_it() -> None:
    logits = rows_of(3000)
    peak = logits.amax(-1, keepdim=True).to(torch.float64)
    together = loops.sums(logits, peak, 0.8)
    for row in range(3):
        alone = loops.sums(logits[row : row + 1], peak[row : row + 1], 0.8)
        assert alone.mass.item() == together.mass[row].item()
        assert alone.logs.item() == together.logs[row].item()


def test_the_largest_number_is_found_wherever_it_stands() -> None:
    for width in (1, 7, 64, 700):
        row = rows_of(width)[0].numpy()
        for place in range(width):
            row[place] += 100.0
            assert loops.peak_of(row) == row[place] == row.max()
            row[place] -= 100.0
        row[-1] = math.nan
        assert math.isnan(loops.peak_of(row))


def weighed(logits: Any, temperature: float) -> tuple[Whole, list[float]]:
    whole = Whole(logits, temperature)
    whole.weigh(range(len(logits)))
    return whole, [whole.mass(row) for row in range(len(logits))]


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("width", [*WIDTHS, 30_000])
def test_rows_that_threads_share_are_summed_as_one_alone(width: int, threads: int) -> None:
    """To the last bit, however they lie in memory; a row with a fault in it tells, and spoils no other."""
    logits = torch.cat([rows_of(width), rows_of(width) + 1.0, torch.full((1, width), -math.inf)])
    logits[4, -1] = math.nan
    with threads_of_torch(threads):
        together = [weighed(given, 0.7) for given in (logits.numpy(), np.asfortranarray(logits.numpy()))]
        later = Whole(logits.numpy(), 0.7)
    for row in (0, 1, 2, 3, 5):
        alone = Whole(logits[row : row + 1].numpy(), 0.7)
        for whole, masses in together:
            assert (whole.peaks[row], masses[row], later.mass(row)) == (alone.peaks[0], *[alone.mass(0)] * 2)
            np.testing.assert_array_equal(whole.blocks(row), alone.blocks(0))
    for whole, _ in together:
        assert np.isnan(whole.peaks).tolist() == [False] * 4 + [True, False, False]
        assert whole.peaks[6] == -math.inf


def test_rows_are_summed_when_somebody_wants_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """And once only."""
    whole, summed = Whole(rows_of(3000).numpy(), 0.7), list[Sequence[int]]()
    weigh = whole.weigh
    monkeypatch.setattr(whole, "weigh", lambda rows: [summed.append(rows), weigh(rows)])
    assert whole.blocks(2).sum() == pytest.approx(whole.mass(2))
    assert summed == [[2]]


def test_a_temperature_may_be_a_whole_number() -> None:
    logits = rows_of(700).numpy()
    assert weighed(logits, 2)[1] == weighed(logits, 2.0)[1]


@pytest.mark.parametrize("width", WIDTHS)
def test_sums_of_blocks_are_those_of_torch(width: int) -> None:
    logits = rows_of(width, torch.float64)
    weights = torch.exp((logits - logits.amax(-1, keepdim=True)) / 0.7)
    for given, near in ((logits, 1e-13), (logits.float(), 1e-5)):
        whole, masses = weighed(given.numpy(), 0.7)
        assert masses == pytest.approx(weights.sum(-1).tolist(), rel=near)
        for row in range(3):
            expected = [part.sum().item() for part in weights[row].split(loops.BLOCK)]
            assert whole.blocks(row).tolist() == pytest.approx(expected, rel=near)


@pytest.mark.parametrize("count", [1, drawing.FEW, drawing.FEW + 1, drawing.FEW + 2, 300])
def test_a_residual_is_drawn_from_as_if_it_were_summed_anew(count: int) -> None:
    """By sums that are known, of which a few ids, or most of what there is, are taken away, or all."""
    logits, temperature = rows_of(3000)[0].numpy(), 0.9
    whole = Whole(logits[None], temperature)
    kept = drawing.Kept(float(whole.peaks[0]), temperature, -math.inf, 0, whole.mass(0))
    p = np.exp((logits.astype(np.float64) - kept.peak) / temperature) / kept.mass
    rng = np.random.default_rng(count)
    for ids in (np.argsort(p)[-count:], rng.choice(len(p), count, replace=False)):
        for shares in (p[ids] / p[ids].sum(), rng.dirichlet(np.ones(count))):
            minus = sparse_row(ids, shares)
            before = whole.blocks(0).copy()
            for uniform in (0.0, *np.linspace(1e-6, 1.0 - 1e-6, 301).tolist()):
                known = drawing.draw(logits, kept, whole.blocks(0), minus, uniform)
                assert known == drawing.draw(logits, kept, None, minus, uniform)
            np.testing.assert_array_equal(whole.blocks(0), before)
