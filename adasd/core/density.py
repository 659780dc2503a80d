"""Kernel density estimates on [0, 1] with O(1) state: a histogram and two moments instead of every sample.

P(A | d) = p(d|A) P(A) / (p(d|A) P(A) + p(d|R) P(R))    (AdaSD v2, arXiv 2512.11280, section 4; Silverman 1986)

Gaussian kernel, Silverman's factor (3 n / 4)^(-1/5) times the sample standard deviation, at least one bin wide;
densities in log space; priors are the shares of the two groups. A sample is spread over three nodes by a quadratic
B-spline, which adds exactly WIDTH^2 / 4 to the variance wherever it falls; the kernel is narrowed by as much.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from adasd.core.types import FloatArray

DISTANCE_ZERO = 1e-3
"""Below this two rows count as equal: more than rounding rows to integer weights can cause."""
DISTANCE_ONE = 1.0 - 1e-6
NODES = 342
"""Nodes of the histogram: 340 on [0, 1] and one beyond each end for the spline."""
WIDTH = 1.0 / (NODES - 3)
VANISHES = -700.0
"""Log density below which float64 itself would give 0."""

_UNDERFLOWS = 1e-290
_MOMENTS = struct.Struct("<Idd")

Counts = NDArray[np.float32]
_POSITIONS = np.arange(-1, NODES - 1) * WIDTH


def _no_counts() -> Counts:
    return np.zeros(NODES, dtype=np.float32)


@dataclass(frozen=True, eq=False)
class Histogram:
    """Samples in [0, 1]. counts: float32 [NODES]; total, squares: sum and sum of squares of the n samples."""

    n: int = 0
    total: float = 0.0
    squares: float = 0.0
    counts: Counts = field(default_factory=_no_counts)

    @classmethod
    def of(cls, samples: list[float]) -> Histogram:
        """The histogram of a list of samples."""
        return cls().add(samples)

    def add(self, samples: list[float]) -> Histogram:
        """A new histogram with these samples filed too."""
        if not samples:
            return self
        counts = self.counts.copy()
        for sample in samples:
            node = round(sample / WIDTH)
            f = sample / WIDTH - node
            for place, share in enumerate((0.5 * (0.5 - f) ** 2, 0.75 - f * f, 0.5 * (0.5 + f) ** 2), node):
                counts[place] = float(counts[place]) + share
        squares = self.squares + math.fsum(s * s for s in samples)
        return Histogram(self.n + len(samples), self.total + math.fsum(samples), squares, counts)

    @cached_property
    def packed(self) -> bytes:
        """n, total, squares and counts, little-endian."""
        return _MOMENTS.pack(self.n, self.total, self.squares) + self.counts.astype("<f4").tobytes()

    @property
    def bandwidth(self) -> float:
        """Silverman's bandwidth, at least one bin."""
        if self.n < 2:
            return WIDTH
        variance = max(0.0, self.squares - self.total**2 / self.n) / (self.n - 1)
        return max(WIDTH, math.sqrt(variance) * math.pow(self.n * 0.75, -0.2))

    def log_density(self, x: float) -> float:
        """Log of the kernel density estimate at x; -inf without samples. Cost does not depend on n."""
        if self.n == 0:
            return -math.inf
        variance = self.bandwidth**2 - WIDTH**2 / 4
        exponents: FloatArray = np.square(x - _POSITIONS) * (-0.5 / variance)
        mass = float(self.counts @ np.exp(exponents))
        log_mass = math.log(mass) if mass > _UNDERFLOWS else self._log_tail(exponents)
        return log_mass - math.log(self.n) - 0.5 * math.log(2 * math.pi * variance)

    def _log_tail(self, exponents: FloatArray) -> float:
        """log(sum counts exp(exponents)) where the plain sum loses its digits."""
        kept = self.counts > 0
        terms = np.log(self.counts[kept], dtype=np.float64) + exponents[kept]
        peak = float(terms.max())
        return peak + math.log(float(np.exp(terms - peak).sum()))


@dataclass(frozen=True, slots=True, eq=False)
class Posterior:
    """P(A | x) from the samples of two groups: accepted and rejected."""

    accepted_samples: Histogram = field(default_factory=Histogram)
    rejected_samples: Histogram = field(default_factory=Histogram)

    def add(self, accepted: list[float], rejected: list[float]) -> Posterior:
        """A new estimate with these samples filed too."""
        return Posterior(self.accepted_samples.add(accepted), self.rejected_samples.add(rejected))

    def ready(self, min_samples: int) -> bool:
        """Whether both groups hold at least `min_samples`."""
        return min(self.accepted_samples.n, self.rejected_samples.n) >= min_samples

    @property
    def prior(self) -> float:
        """P(A): the accepted share of all samples; 1/2 without any."""
        n = self.accepted_samples.n + self.rejected_samples.n
        return self.accepted_samples.n / n if n else 0.5

    def accepted(self, x: float) -> float | None:
        """P(A | x), or None where both densities vanish."""
        log_accepted = self.accepted_samples.log_density(x)
        log_rejected = self.rejected_samples.log_density(x)
        if max(log_accepted, log_rejected) < VANISHES:
            return None
        accepted = log_accepted + math.log(self.accepted_samples.n or 1)
        rejected = log_rejected + math.log(self.rejected_samples.n or 1)
        return 1.0 / (1.0 + math.exp(min(700.0, rejected - accepted)))
