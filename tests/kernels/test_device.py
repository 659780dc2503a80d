"""What only the torch side can get wrong: memory that is not its own, tensors on the wrong device, gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from adasd.core.acceptance import EXACT
from adasd.core.density import Posterior
from adasd.core.draws import CounterDraws, DrawKey, Purpose
from adasd.core.draws import inverse_cdf as host_inverse_cdf
from adasd.core.processing import Processor
from adasd.core.rows import PointRow, SparseRow, sparse_row
from adasd.core.types import Processing, Row, SamplingParams
from adasd.core.verification import RatioVerification
from adasd.kernels import device
from adasd.kernels.device import DeviceKernels
from adasd.kernels.divergence import js_divergence_on_support
from adasd.kernels.draws import first_above, gumbel, inverse_cdf, splitmix64
from adasd.kernels.rows import padded, scattered
from adasd.kernels.selection import likeliest
from adasd.kernels.warping import SEARCHES, Cut, Search, attempt, forced, kept_count, mass_and_entropy, uncut
from tests.kernels.backends import block

SAMPLINGS = (
    SamplingParams(),
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=0.7, top_k=9, top_p=0.9, min_p=0.1),
)
EDITS = Processor(Processing(((5, 2.0),), 1.2, 0.5), [7, 8, 9], 1).edits([3, 4, 5], 4)
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)

NO_BITS, ALL_BITS = 0x61C8864680B583EB, 0x31628AF67B2131AB
"""Keys that give token 0 no bits and all bits: splitmix64 run backwards."""


def logits(dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(4, 300, generator=torch.Generator().manual_seed(1)).to(dtype)


def use_everything(rows: torch.Tensor, minus: Row | None = None) -> list[object]:
    """Every operation once, for every kind of sampling."""
    found: list[object] = []
    for sampling in SAMPLINGS:
        row = minus or DeviceKernels().propose(rows[0], sampling).row
        assert row is not None
        DeviceKernels(None).propose(rows[0], sampling)
        target = DeviceKernels().target(rows, sampling)
        found.append(list(target.evidence(block([int(row.ids[0])], [row]))))
        found.append(target.emit(0, row, DrawKey(0, 0, Purpose.EMIT), CounterDraws(1)))
        found.append(list(target.coupled(0, CounterDraws(1))))
        found.append(list(target.logprobs([3, 4], 5)))
        processed = DeviceKernels().target(rows, sampling, EDITS)
        found.append(processed.emit(0, None, DrawKey(0, 0, Purpose.EMIT), CounterDraws(1)))
    return found


@pytest.mark.parametrize("dtype", DTYPES)
def test_logits_are_left_as_they_were(dtype: torch.dtype) -> None:
    rows = logits(dtype)
    before = rows.clone()
    use_everything(rows)
    assert torch.equal(rows, before)


def test_logits_of_a_model_as_it_runs() -> None:
    """In inference mode, with gradients on, or a strided view: the same answers."""
    expected = use_everything(logits())
    with torch.inference_mode():
        inferred = logits() + 0.0
        assert use_everything(inferred) == expected
    assert use_everything(inferred) == expected
    assert use_everything(logits().requires_grad_()) == expected
    assert use_everything(torch.cat([logits(), logits()], -1)[:, :300]) == expected


def test_rows_off_the_wire_are_read_only() -> None:
    row = sparse_row(np.arange(5), np.full(5, 0.2))
    frozen = SparseRow(
        np.frombuffer(row.ids.tobytes(), dtype=np.int64), np.frombuffer(row.weights.tobytes(), dtype=np.int64)
    )
    assert use_everything(logits(), frozen) == use_everything(logits(), row)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("search", [Search(64), Search(64, window=True)], ids=["first", "window"])
@pytest.mark.parametrize("sampling", [SAMPLINGS[0], SAMPLINGS[2]], ids=["plain", "all"])
def test_every_tensor_is_made_where_the_logits_are(
    dtype: torch.dtype, sampling: SamplingParams, search: Search
) -> None:
    """On the `meta` device nothing is computed, but tensors of different devices still do not mix."""
    meta = torch.device("meta")
    rows = torch.empty((3, 500), dtype=dtype, device=meta)
    warped = attempt(rows, sampling, search)
    draft = block([1, 3], [PointRow(1), sparse_row(np.array([1, 3]), np.array([0.5, 0.5]))])
    candidates = padded(draft, meta)
    p = warped.rows(slice(2)).at(candidates.ids)
    one = torch.empty(1, dtype=torch.int64, device=meta)
    made = [
        torch.cat([warped.peak, warped.cut.mass, warped.cut.found], -1),
        *warped.recut(one, Cut(*(field[:1] for field in warped.cut))).cut,
        *mass_and_entropy(forced(rows), warped.peak, 1.0),
        js_divergence_on_support(p, candidates.q),
        inverse_cdf(warped.dense()[0] - scattered(draft.rows[1], 500, meta), 0.5),
        gumbel([1, 2**64 - 1], warped.ids()).masked_fill(~warped.kept(rows, warped.ids())[:2], 0.0),
    ]
    assert {tensor.device for tensor in made} == {meta}


@pytest.mark.parametrize("count", [1, 2, 37, 333, 2500, 4999, 5000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_likeliest_are_those_of_topk(count: int, dtype: torch.dtype) -> None:
    rows = torch.randn(3, 5000, generator=torch.Generator().manual_seed(4)).to(dtype)
    rows[1, ::2] = -torch.inf
    rows[2, 7] = torch.nan
    rows[0, -1] = 9.0  # beside the stacks
    values, ids = likeliest(rows, count)
    torch.testing.assert_close(values, rows.topk(count).values, rtol=0.0, atol=0.0, equal_nan=True)
    torch.testing.assert_close(rows.gather(-1, ids), values, rtol=0.0, atol=0.0, equal_nan=True)
    assert all(len(set(row)) == count for row in ids.tolist())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("top_k", [0, 900])
@pytest.mark.parametrize(("top_p", "min_p"), [(0.5, 0.0), (0.95, 0.0), (1.0 - 1e-12, 0.0), (0.95, 1e-3), (1.0, 1e-3)])
def test_a_window_finds_the_cut_that_ranking_everything_finds(
    dtype: torch.dtype, top_k: int, top_p: float, min_p: float
) -> None:
    """On rows from peaked to flat, so that the cut comes after few ids and after most."""
    scales = torch.tensor([[8.0], [3.0], [1.5], [1.0], [0.3]])
    rows = (torch.randn(5, 6000, generator=torch.Generator().manual_seed(5)) * scales).to(dtype)
    rows[:, ::11] = -torch.inf
    sampling = SamplingParams(1.0, top_k, top_p, min_p)
    window, everything = (attempt(rows, sampling, search).cut for search in SEARCHES[1:])
    found = window.found[:, 0]
    assert int(found.sum()) >= 3
    assert torch.equal(window.value[found], everything.value[found])
    assert torch.equal(window.first_id[found], everything.first_id[found])
    torch.testing.assert_close(window.mass[found], everything.mass[found], rtol=1e-12, atol=0.0)


def test_ids_of_weight_0_are_not_counted_as_kept() -> None:
    """Else every row with bans would look cut among equals, and cost a second transfer."""
    values, weights = torch.tensor([[0.0, -torch.inf]]), torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    assert kept_count(values, weights, uncut(values, weights[:, :1]), SamplingParams()).tolist() == [[1]]


@pytest.mark.parametrize(
    ("seed", "outputs"),
    [
        (0, [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]),
        (1234567, [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]),
    ],
)
def test_splitmix64_gives_the_published_sequence(seed: int, outputs: list[int]) -> None:
    bits = splitmix64([seed], torch.arange(len(outputs)))[0]
    assert [value % 2**64 for value in bits.tolist()] == outputs


def test_noise_is_that_of_the_host() -> None:
    draws = CounterDraws(2**64 - 1, 7)
    ids = torch.tensor([0, 1, 49_151, 151_935])
    positions = range(2**33, 2**33 + 50)
    found = gumbel([draws.gumbel_key(position) for position in positions], ids).numpy()
    expected = np.stack([draws.gumbel(position, ids.numpy()) for position in positions])
    np.testing.assert_allclose(found, expected, rtol=1e-13)


@pytest.mark.parametrize(("key", "bits"), [(NO_BITS, 0), (ALL_BITS, 2**64 - 1)])
def test_noise_is_finite_at_extreme_bits(key: int, bits: int) -> None:
    assert splitmix64([key], torch.tensor([0])).item() % 2**64 == bits
    assert torch.isfinite(gumbel([key], torch.tensor([0]))).all()


@pytest.mark.parametrize("unit", [1.0, 0.1, 1e300, 1e-320])
@pytest.mark.parametrize("uniform", [2.0**-54, 0.25, 0.5, 1.0 - 2.0**-53])
def test_inverse_cdf_is_that_of_the_host(unit: float, uniform: float) -> None:
    """Down to subnormal weights, where uniform * sum rounds up to the sum itself."""
    for weights in ([0, 1, 0], [1, 0, 0, 1, 2, 0], [3], [0, 0, 2, 1]):
        scaled = np.array(weights) * unit
        index = int(inverse_cdf(torch.from_numpy(scaled), uniform))
        assert index == host_inverse_cdf(scaled, uniform)
        assert weights[index] > 0


@pytest.mark.parametrize("uniform", [0.5, 1.0 - 2**-53])
def test_a_sum_that_does_not_ascend_still_gives_no_id_of_weight_0(uniform: float) -> None:
    """As a parallel sum may: the third id's stands an ulp below its neighbour's."""
    uneven = torch.tensor([0.5, 0.0, 1.0 + 2**-52, 1.0, 0.0], dtype=torch.float64)
    assert int(first_above(uneven, uniform)) == 2


def test_nobody_looks_behind_the_first_rejected_candidate(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where sampling cuts nothing: p of the second one is all but 0."""
    rows, looked_at = torch.zeros(5, 300), []
    rows[1, 7] = -300.0
    evidence_of = device.evidence_of

    def counted(*arguments: Any) -> Any:
        looked_at.append(arguments[-1])
        return evidence_of(*arguments)

    monkeypatch.setattr(device, "evidence_of", counted)
    draft = block([6, 7, 8, 9], [sparse_row(np.arange(300), np.full(300, 1 / 300)) for _ in range(4)])
    target = DeviceKernels().target(rows, SamplingParams())
    verdict = RatioVerification(EXACT).verify(target, draft, Posterior(), 1, CounterDraws(0))
    assert verdict.accepted == 1
    assert looked_at == [6, 7]
