"""Medians, percentiles, and ratios of paired measurements with the interval that chance leaves them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

RESAMPLES = 2000
FEWEST = 5
"""Pairs below which resampling says nothing."""
CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Ratio:
    """The median of paired ratios; low, high: its bootstrap 95% interval, None with fewer than FEWEST pairs."""

    median: float
    pairs: int
    low: float | None = None
    high: float | None = None

    def __str__(self) -> str:
        interval = "" if self.low is None else f" [{self.low:.2f}, {self.high:.2f}]"
        return f"{self.median:.2f}{interval}"


def paired_ratio(values: Sequence[float], bases: Sequence[float], seed: int = 0) -> Ratio:
    """values[i] / bases[i] is one pair; at least one. Pairs are drawn again with replacement, RESAMPLES times."""
    ratios = np.asarray(values, float) / np.asarray(bases, float)
    middle = float(np.median(ratios))
    if len(ratios) < FEWEST:
        return Ratio(middle, len(ratios))
    drawn = np.random.default_rng(seed).integers(len(ratios), size=(RESAMPLES, len(ratios)))
    medians = np.median(ratios[drawn], axis=1)
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(medians, [tail, 1 - tail])
    return Ratio(middle, len(ratios), float(low), float(high))


def percentile(values: Sequence[float], percent: float) -> float:
    """With interpolation between neighbours; of at least one value."""
    return float(np.percentile(np.asarray(values, float), percent))
