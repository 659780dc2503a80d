from __future__ import annotations

import numpy as np
import pytest

from adasd.bench.statistics import paired_ratio, percentile


def test_ratios_are_paired() -> None:
    ratio = paired_ratio([2.0, 20.0, 200.0], [1.0, 10.0, 100.0])
    assert (ratio.median, ratio.pairs) == (2.0, 3)
    assert str(ratio) == "2.00", "three pairs say nothing of chance"


def test_the_interval_is_that_of_resampled_medians() -> None:
    ratio = paired_ratio([1.0, 2.0, 3.0, 4.0, 100.0], [1.0] * 5)
    assert ratio.median == 3.0
    assert (ratio.low, ratio.high) == (1.0, 100.0), "of five pairs the extremes are within 95%"
    assert str(ratio) == "3.00 [1.00, 100.00]"


def test_the_interval_holds_the_true_median_about_as_often_as_it_says() -> None:
    draws = np.random.default_rng(7)
    held = 0
    for _ in range(200):
        ratio = paired_ratio(np.exp(draws.normal(size=31)).tolist(), [1.0] * 31)
        assert ratio.low is not None
        assert ratio.high is not None
        held += ratio.low <= 1.0 <= ratio.high
    assert 0.9 <= held / 200 <= 0.99


def test_percentiles_lie_between_neighbours() -> None:
    assert percentile([3.0, 1.0, 2.0], 50) == 2.0
    assert percentile([0.0, 10.0], 95) == pytest.approx(9.5)
