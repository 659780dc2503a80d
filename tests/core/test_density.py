"""The O(1) estimate against scipy's own kernel density estimates: golden values and random samples."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import gaussian_kde

from adasd.core.density import WIDTH, Histogram, Posterior

GOLDEN = json.loads((Path(__file__).parent.parent / "golden" / "posterior.json").read_text())


def posterior(accepted: list[float], rejected: list[float]) -> Posterior:
    return Posterior().add(accepted, rejected)


@pytest.mark.parametrize("case", GOLDEN, ids=range(len(GOLDEN)))
def test_golden_posterior(case: dict[str, list[float]]) -> None:
    """P(A | d) as scipy gives it, within 0.01, wherever the narrower bandwidth is at least one bin."""
    estimate = posterior(case["accepted"], case["rejected"])
    assert estimate.prior == pytest.approx(case["prior_accepted"])
    if silverman(case["accepted"]) < WIDTH or silverman(case["rejected"]) < WIDTH:
        assert estimate.accepted_samples.bandwidth >= WIDTH
        return
    found = np.array([estimate.accepted(d) for d in case["d"]], dtype=float)
    mixture = estimate.prior * np.array(case["density_accepted"])
    mixture += (1 - estimate.prior) * np.array(case["density_rejected"])
    kept = mixture > 1e-3 * mixture.max()
    assert np.abs(found - np.array(case["p_accept"]))[kept].max() < 0.01


def silverman(samples: list[float]) -> float:
    return float(np.std(samples, ddof=1) * (len(samples) * 0.75) ** -0.2)


distances = st.lists(st.floats(0.001, 0.999), min_size=5, max_size=60)


@settings(max_examples=150, deadline=None)
@given(distances, distances)
def test_posterior_equals_scipy(accepted: list[float], rejected: list[float]) -> None:
    if min(silverman(accepted), silverman(rejected)) < 2 * WIDTH:
        return
    estimate = posterior(accepted, rejected)
    x = np.linspace(0.001, 0.999, 101)
    f_accepted = gaussian_kde(accepted, "silverman")(x) * estimate.prior
    f_rejected = gaussian_kde(rejected, "silverman")(x) * (1 - estimate.prior)
    mixture = f_accepted + f_rejected
    kept = mixture > 1e-3 * mixture.max()
    found = np.array([estimate.accepted(float(d)) for d in x[kept]], dtype=float)
    assert np.abs(found - (f_accepted / np.maximum(mixture, 1e-300))[kept]).max() < 0.01


def test_log_density_integrates_to_one() -> None:
    histogram = Histogram.of([0.3, 0.35, 0.4, 0.5, 0.62])
    x = np.linspace(-1, 2, 6001)
    mass = np.trapezoid([math.exp(histogram.log_density(float(v))) for v in x], x)
    assert mass == pytest.approx(1.0, abs=1e-4)


def test_samples_may_come_one_by_one() -> None:
    samples = [0.1, 0.9, 0.0, 1.0, 0.5]
    one_by_one = Histogram()
    for sample in samples:
        one_by_one = one_by_one.add([sample])
    at_once = Histogram.of(samples)
    np.testing.assert_allclose(one_by_one.counts, at_once.counts, atol=1e-6)
    assert one_by_one.counts.sum() == pytest.approx(5, abs=1e-5)
    assert (one_by_one.n, one_by_one.total) == (at_once.n, pytest.approx(at_once.total))


def test_equal_samples_have_one_bin_of_bandwidth() -> None:
    histogram = Histogram.of([0.25] * 10)
    assert histogram.bandwidth == WIDTH
    assert histogram.log_density(0.25) > histogram.log_density(0.25 + 3 * WIDTH)


def test_where_both_densities_vanish_there_is_no_answer() -> None:
    estimate = posterior([0.1] * 5, [0.12] * 5)
    assert estimate.accepted(0.95) is None
    assert estimate.accepted(0.1) is not None


def test_no_samples() -> None:
    assert Histogram().log_density(0.5) == -math.inf
    assert Posterior().accepted(0.5) is None
    assert Posterior().prior == 0.5
    assert not Posterior().ready(1)
    assert posterior([0.1, 0.2], []).accepted(0.15) == pytest.approx(1.0)
