"""Warping beyond the golden rows: where rounding, ties and infinities would decide if nobody had."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adasd.core.errors import InvalidRequest, NumericalFault
from adasd.core.sampling import by_likelihood, check_logits, entropy_bits, fault_of, softmax, warp
from adasd.core.types import SamplingParams
from tests.golden.cases import golden

INF = math.inf
LOGITS = st.lists(st.one_of(st.sampled_from([0.0, 1.0, -INF]), st.floats(-50, 50)), min_size=1, max_size=20)


def kept(logits: list[float], **sampling: float) -> list[int]:
    """Ids with any probability."""
    found: list[int] = np.flatnonzero(warp(np.array(logits), SamplingParams(**sampling))).tolist()  # type: ignore[arg-type]
    return found


@pytest.mark.parametrize("case", golden("warping"))
def test_golden(case: dict[str, list[float]]) -> None:
    sampling = SamplingParams(case["temperature"], case["top_k"], case["top_p"], case["min_p"])  # type: ignore[arg-type]
    np.testing.assert_allclose(warp(np.array(case["logits"]), sampling), case["probs"], atol=1e-6)


@pytest.mark.parametrize("case", golden("divergence"))
def test_golden_entropy(case: dict[str, list[float]]) -> None:
    assert entropy_bits(np.array(case["p"])) == pytest.approx(case["entropy_p_bits"], abs=1e-6)


@given(LOGITS.filter(lambda logits: max(logits) > -INF), st.floats(-30, 30), st.floats(0.05, 20))
def test_softmax(logits: list[float], shift: float, temperature: float) -> None:
    """Sums to 1, knows no shift, and dividing by the temperature is what the temperature does."""
    array = np.array(logits)
    found = softmax(array, temperature)
    assert found.sum() == pytest.approx(1.0)
    assert not found[np.isneginf(array)].any()
    np.testing.assert_allclose(softmax(array + shift, temperature), found, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(softmax(array / temperature), found, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("logits", [[3.0, 5.0], [-5.0, -3.0], [-1.7e308, 1.7e308], [5e-324, 1.0]])
@pytest.mark.parametrize("temperature", [5e-324, 1e-310, 1e-3])
def test_low_temperatures_end_in_the_arg_max(logits: list[float], temperature: float) -> None:
    assert softmax(np.array(logits), temperature).tolist() == [0.0, 1.0]


def test_infinity_takes_everything() -> None:
    assert softmax(np.array([INF, 0.0, INF, -INF])).tolist() == [0.5, 0.0, 0.5, 0.0]
    assert kept([INF, 0.0, INF, -INF], top_k=3, top_p=0.99, min_p=0.5) == [0, 2]


def test_greedy_takes_the_lowest_of_equals() -> None:
    assert kept([0.0, 2.0, 2.0], temperature=0.0) == [1]


def test_order_of_likelihood() -> None:
    assert by_likelihood(np.array([1.0, 3.0, -INF, 3.0, 2.0])).tolist() == [3, 1, 4, 0, 2]


def test_top_k_keeps_ties_and_may_exceed_what_there_is() -> None:
    assert kept([1.0, 2.0, 1.0, 0.0], top_k=2) == [0, 1, 2]
    assert kept([1.0, -INF, 0.0], top_k=3) == kept([1.0, -INF, 0.0], top_k=30) == [0, 2]


@pytest.mark.parametrize("width", range(1, 31))
def test_top_p_is_not_decided_by_rounding(width: int) -> None:
    """Of n equals, top_p = k / n keeps k: however the masses round when they are summed."""
    for count in range(1, width + 1):
        assert kept([0.3] * width, top_p=count / width) == list(range(width - count, width))


def test_top_p_keeps_at_least_one() -> None:
    assert kept([0.0, 9.0], top_p=1e-12) == [1]


def test_top_p_applies_to_what_top_k_left() -> None:
    logits = np.log([0.4, 0.3, 0.2, 0.1]).tolist()
    assert kept(logits, top_p=0.8) == [0, 1, 2]
    assert kept(logits, top_k=3, top_p=0.75) == [0, 1]  # 0.7 of 0.9 is 0.778


def test_top_p_ranks_logits_that_the_softmax_cannot_tell_apart() -> None:
    """At a huge temperature both have probability 1/2 to the last bit, yet the first is the likelier."""
    assert kept([1e-12, 0.0], temperature=1e6, top_p=0.4) == [0]


def test_min_p_is_relative_to_the_peak() -> None:
    logits = np.log([0.5, 0.3, 0.15, 0.05]).tolist()
    assert kept(logits, min_p=0.5) == [0, 1]
    assert kept([0.0, 0.0, -1.0], min_p=1.0) == [0, 1]
    assert kept([0.0, -1.0, -1.1], min_p=math.exp(-1.0)) == [0, 1]


@given(LOGITS.filter(lambda logits: max(logits) > -INF), st.integers(0, 22), st.floats(0.01, 1.0), st.floats(0, 1))
def test_every_cut_renormalises(logits: list[float], top_k: int, top_p: float, min_p: float) -> None:
    plain = warp(np.array(logits), SamplingParams())
    found = warp(np.array(logits), SamplingParams(top_k=top_k, top_p=top_p, min_p=min_p))
    assert found.sum() == pytest.approx(1.0)
    np.testing.assert_allclose(found, np.where(found > 0, plain / plain[found > 0].sum(), 0.0), atol=1e-9)
    assert plain[found > 0].min() >= np.max(plain[found == 0], initial=0.0)


@pytest.mark.parametrize(("count", "bits"), [(1, 0.0), (2, 1.0), (8, 3.0), (1024, 10.0)])
def test_entropy_of_equals(count: int, bits: float) -> None:
    assert entropy_bits(np.append(np.full(count, 1 / count), 0.0)) == pytest.approx(bits)


@pytest.mark.parametrize("row", [[0.0, math.nan], [math.nan, INF], [-INF, math.nan]])
def test_nan_is_refused(row: list[float]) -> None:
    with pytest.raises(NumericalFault, match="NaN") as fault:
        check_logits(np.array([[0.0, 1.0], row]), "draft")
    assert fault.value.side == "draft"


def test_rows_of_bans_are_refused() -> None:
    with pytest.raises(NumericalFault, match="without a finite logit") as fault:
        check_logits(np.array([[0.0, 1.0], [-INF, -INF]]), "target")
    assert fault.value.side == "target"
    check_logits(np.array([[0.0, -INF], [INF, -INF]]), "target")
    assert fault_of(np.array([0.0, INF]), "target") is None


def test_sampling_parameters_are_validated() -> None:
    for field, value in [("temperature", -0.1), ("top_p", 0.0), ("top_p", 1.1), ("min_p", math.nan), ("top_k", -1)]:
        with pytest.raises(InvalidRequest) as refusal:
            SamplingParams(**{field: value})  # type: ignore[arg-type]
        assert refusal.value.param == field
