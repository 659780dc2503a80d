"""What a round costs, in seconds, by the number of its candidates: as stated, or as the rounds themselves show it.

C(k) = [k > 0] fixed + k draft + verify(k + 1) + commit
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise

import numpy as np

from adasd.core.errors import InvalidRequest

MAX_ROWS = 65
"""Rows of the longest block that any rule may ask for, and the one beside it."""
SHORTEST = 1e-9
HORIZON, LEVEL_HORIZON, SHAPE_HORIZON = 64, 16, 256
"""Rounds that an average remembers. Load comes and goes faster than what rows cost relative to one another."""

FORGOTTEN = 0.25
"""Weight at which a number of rows counts as never seen."""


@dataclass(frozen=True)
class CostProfile:
    """The costs of one deployment. Validated on construction; raises InvalidRequest naming the field.

    version: names these figures wherever a text depends on them. fixed: once for involving the drafter: network and
    queue. draft: a candidate. verify: by rows of the pass, from 1, never falling. commit: every round.
    """

    version: str
    fixed: float
    draft: float
    verify: tuple[float, ...]
    commit: float = 0.0

    def __post_init__(self) -> None:
        for name, seconds in (("fixed", self.fixed), ("draft", self.draft), ("commit", self.commit)):
            _check(math.isfinite(seconds) and seconds >= 0.0, name, "must be finite and not negative")
        _check(0 < len(self.verify) <= MAX_ROWS, "verify", f"must have 1 to {MAX_ROWS} entries")
        _check(all(map(math.isfinite, self.verify)) and self.verify[0] > 0.0, "verify", "must be finite and positive")
        _check(all(a <= b for a, b in pairwise(self.verify)), "verify", "must not fall with the number of rows")

    @cached_property
    def passes(self) -> tuple[float, ...]:
        """verify for 1 to MAX_ROWS rows; past its end the table goes on with its average slope."""
        slope = (self.verify[-1] - self.verify[0]) / max(1, len(self.verify) - 1)
        missing = range(1, MAX_ROWS - len(self.verify) + 1)
        return (*self.verify, *(self.verify[-1] + slope * i for i in missing))

    @cached_property
    def rounds(self) -> tuple[float, ...]:
        """C(k) for 0 to MAX_ROWS - 1 candidates."""
        return tuple(
            (self.fixed if k else 0.0) + k * self.draft + seconds + self.commit for k, seconds in enumerate(self.passes)
        )


def stated_profile(figures: Mapping[str, object]) -> CostProfile:
    """The profile in a JSON object with the fields of CostProfile; `commit` may be left out.

    Raises InvalidRequest naming the field.
    """
    missing = {"version", "fixed", "draft", "verify"} - figures.keys()
    unknown = figures.keys() - {"version", "fixed", "draft", "verify", "commit"}
    for name in sorted(missing | unknown):
        raise InvalidRequest(f"{name} of a cost profile is {'missing' if name in missing else 'unknown'}", name)
    version, verify = figures["version"], figures["verify"]
    if not (isinstance(version, str) and version.isascii() and version.isalnum()):
        raise InvalidRequest("version of a cost profile must be letters and digits", "version")
    if not isinstance(verify, list):
        raise InvalidRequest("verify of a cost profile must be a list of seconds", "verify")
    fixed, draft, commit = (_number(name, figures.get(name, 0.0)) for name in ("fixed", "draft", "commit"))
    return CostProfile(version, fixed, draft, tuple(_number("verify", seconds) for seconds in verify), commit)


def _number(name: str, value: object) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise InvalidRequest(f"{name} of a cost profile must be seconds, got {value!r}", name)
    return float(value)


def _check(holds: bool, name: str, problem: str) -> None:
    if not holds:
        raise InvalidRequest(f"{name} of a cost profile {problem}", name)


NOMINAL = CostProfile("nominal1", 0.02, 0.02, tuple(0.08 + 0.002 * rows for rows in range(21)), 0.002)
"""Where nothing is known of a deployment: a candidate at a quarter of a target's pass, further rows almost free."""

CostSource = Callable[[], CostProfile]
"""The costs as of now."""


def nominal() -> CostProfile:
    """The source where nobody measures."""
    return NOMINAL


@dataclass(frozen=True, slots=True)
class Average:
    """A slow average that a lone outlier does not move: each value counts as the median of the last three.

    weight: values remembered; it wanes while none come, so that a new one then counts for more.
    """

    weight: float = 0.0
    value: float = 0.0
    recent: tuple[float, ...] = ()

    def add(self, value: float, horizon: float) -> Average:
        recent = (*self.recent, value)[-3:]
        typical = sorted(recent)[(len(recent) - 1) // 2]
        weight = min(self.weight + 1.0, horizon)
        known = weight > len(recent)
        return Average(weight, self.value + (typical - self.value) / weight if known else typical, recent)

    def aged(self, horizon: float) -> Average:
        """One round later; after `horizon` of them little is left."""
        weight = self.weight * (1.0 - 1.0 / horizon)
        return Average(weight, self.value, self.recent if weight >= 1.0 else ())

    def otherwise(self, prior: float) -> float:
        """The average, or `prior` before the first value."""
        return self.value if self.weight else prior


@dataclass(frozen=True, slots=True)
class Observation:
    """One round as the gateway saw it, in seconds.

    drafting: until the candidates were there; None if that says nothing. work: of which the drafter's own. steps: in so
    many passes; 0 where they were not the usual ones, because it was catching up.
    """

    candidates: int
    verify: float
    commit: float
    drafting: float | None = None
    work: float = 0.0
    steps: int = 0


@dataclass(frozen=True, slots=True)
class CostMeter:
    """Costs as they are now. A drafter never seen costs nothing, so that it is tried; verify starts as the prior's.

    verify = prior * level * shape: the level follows the load, whichever rows show it; the shape, by rows, outlives it.
    """

    prior: CostProfile = NOMINAL
    level: Average = Average()
    shape: Mapping[int, Average] = field(default_factory=dict)
    fixed: Average = Average()
    draft: Average = Average()
    commit: Average = Average()

    def after(self, seen: Observation) -> CostMeter:
        """The meter once it has seen another round."""
        aged = ((rows, average.aged(SHAPE_HORIZON)) for rows, average in self.shape.items())
        shape = {rows: average for rows, average in aged if average.weight > FORGOTTEN}
        meter = replace(self, shape=shape, fixed=self.fixed.aged(HORIZON), draft=self.draft.aged(HORIZON))
        meter = meter._verified(seen.candidates + 1, seen.verify)
        meter = replace(meter, commit=meter.commit.add(seen.commit, HORIZON))
        if seen.drafting is not None:
            meter = replace(meter, fixed=meter.fixed.add(max(0.0, seen.drafting - seen.work), HORIZON))
        return replace(meter, draft=meter.draft.add(seen.work / seen.steps, HORIZON)) if seen.steps else meter

    def _verified(self, rows: int, seconds: float) -> CostMeter:
        ratio, shape = max(seconds, SHORTEST) / self.prior.passes[rows - 1], self.shape.get(rows, Average())
        comparable = shape.weight > 0.0 or self.level.weight == 0.0
        level = self.level.add(ratio / shape.otherwise(1.0), LEVEL_HORIZON) if comparable else self.level
        return replace(self, level=level, shape={**self.shape, rows: shape.add(ratio / level.value, SHAPE_HORIZON)})

    def profile(self) -> CostProfile:
        """The costs now."""
        level = self.level.otherwise(1.0)
        return CostProfile(
            version="live",
            fixed=self.fixed.otherwise(0.0),
            draft=self.draft.otherwise(0.0),
            verify=self._verify_table(level),
            commit=self.commit.otherwise(self.prior.commit),
        )

    def _verify_table(self, level: float) -> tuple[float, ...]:
        """By rows. What was seen seldom or never is thought cheap, so that it is tried where that could pay.

        Rows never seen cost what the next fewer do; past the last they grow as the prior's, before the first in
        proportion.
        """
        prior, every = np.array(self.prior.passes) * level, np.arange(1, MAX_ROWS + 1)
        if not self.shape:
            return tuple(prior.tolist())
        rows = np.array(sorted(self.shape))
        seen = [self.shape[r] for r in rows.tolist()]
        hopeful = prior[rows - 1] * [s.value * (1.0 - 0.25 / max(1.0, s.weight)) for s in seen]
        known = np.array(isotonic(hopeful.tolist(), [s.weight for s in seen]))
        below = np.maximum(np.searchsorted(rows, every, side="right") - 1, 0)
        verify = np.where(every < rows[0], known[0] * every / rows[0], known[below])
        verify *= np.where(every > rows[-1], prior / prior[rows[-1] - 1], 1.0)
        return tuple(verify.tolist())


def isotonic(values: list[float], weights: list[float]) -> list[float]:
    """The nearest sequence that never falls, by weighted least squares: neighbours that do are pooled."""
    pools: list[tuple[float, float, int]] = []  # mean, weight, entries
    for value, weight in zip(values, weights, strict=True):
        pools.append((value, weight, 1))
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            (a, wa, na), (b, wb, nb) = pools[-2:]
            pools[-2:] = [((a * wa + b * wb) / (wa + wb), wa + wb, na + nb)]
    return [mean for mean, _, entries in pools for _ in range(entries)]
