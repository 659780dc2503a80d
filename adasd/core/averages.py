"""Averages of what is measured while it changes."""

from __future__ import annotations

from typing import NamedTuple


class Average(NamedTuple):
    """A slow average that a lone outlier does not move: each value counts as the median of the last three.

    weight: values remembered; it wanes while none come, so that a new one then counts for more.
    """

    weight: float = 0.0
    value: float = 0.0
    recent: tuple[float, ...] = ()

    def add(self, value: float, horizon: float) -> Average:
        recent = (*self.recent[-2:], value)
        typical = sorted(recent)[(len(recent) - 1) // 2]
        weight = min(self.weight + 1.0, horizon)
        known = weight > len(recent)
        return Average(weight, self.value + (typical - self.value) / weight if known else typical, recent)

    def aged(self, horizon: float) -> Average:
        """One round later; after `horizon` of them little is left."""
        if not self.weight:
            return self
        weight = self.weight * (1.0 - 1.0 / horizon)
        return Average(weight, self.value, self.recent if weight >= 1.0 else ())

    def otherwise(self, prior: float) -> float:
        """The average, or `prior` before the first value."""
        return self.value if self.weight else prior


UNSEEN = Average()
