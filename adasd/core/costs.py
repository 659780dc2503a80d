"""What a round costs, in seconds, by the number of its candidates; `adasd.core.metering` finds out.

C(k) = [k > 0] fixed + k draft + verify(k + 1) + commit
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import numpy as np

from adasd.core.errors import InvalidRequest

MAX_ROWS = 65
"""Rows of the longest block that any rule may ask for, and the one beside it."""


@dataclass(frozen=True)
class CostProfile:
    """The costs of one deployment. Validated on construction; raises InvalidRequest naming the field.

    version: names these figures wherever a text depends on them. fixed: once for involving the drafter: network and
    queue. draft: a candidate. verify: by rows of the pass, from 1, never falling. commit: every round.

    copied: as `verify`, where nobody waits for a drafter; by default the same. joined: as `copied`, of a block that
    begins a run; by default the same. reading: an id of the context that the drafter has to read before its first
    candidate, as far as somebody waits for that.
    """

    version: str
    fixed: float
    draft: float
    verify: tuple[float, ...]
    commit: float = 0.0
    copied: tuple[float, ...] = ()
    reading: float = 0.0
    joined: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        for name in ("fixed", "draft", "commit", "reading"):
            seconds = getattr(self, name)
            _check(math.isfinite(seconds) and seconds >= 0.0, name, "must be finite and not negative")
        _check(len(self.verify) > 0, "verify", f"must have 1 to {MAX_ROWS} entries")
        for name, table in (("verify", self.verify), ("copied", self.copied), ("joined", self.joined)):
            _check(len(table) <= MAX_ROWS, name, f"must have 1 to {MAX_ROWS} entries")
            _check(
                all(map(math.isfinite, table)) and min(table, default=1.0) > 0.0, name, "must be finite and positive"
            )
            _check(all(a <= b for a, b in pairwise(table)), name, "must not fall with the number of rows")

    @cached_property
    def passes(self) -> tuple[float, ...]:
        """verify for 1 to MAX_ROWS rows; past its end the table goes on with its average slope."""
        return _extended(self.verify)

    @cached_property
    def rounds(self) -> tuple[float, ...]:
        """C(k) for 0 to MAX_ROWS - 1 candidates."""
        return tuple(
            (self.fixed if k else 0.0) + k * self.draft + seconds + self.commit for k, seconds in enumerate(self.passes)
        )

    @cached_property
    def without_fixed(self) -> CostProfile:
        """As if involving the drafter cost nothing."""
        return replace(self, fixed=0.0)

    @cached_property
    def copied_rounds(self) -> tuple[float, ...]:
        """As `rounds`, of candidates that no drafter is asked for."""
        return tuple(seconds + self.commit for seconds in _extended(self.copied or self.verify))

    @cached_property
    def joined_rounds(self) -> tuple[float, ...]:
        """As `copied_rounds`, of a block that begins a run."""
        return tuple(seconds + self.commit for seconds in _extended(self.joined)) if self.joined else self.copied_rounds


def _extended(table: tuple[float, ...]) -> tuple[float, ...]:
    slope = (table[-1] - table[0]) / max(1, len(table) - 1)
    return (*table, *(table[-1] + slope * i for i in range(1, MAX_ROWS - len(table) + 1)))


def stated_profile(figures: Mapping[str, object]) -> CostProfile:
    """The profile in a JSON object with the fields of CostProfile; those with a default may be left out.

    Raises InvalidRequest naming the field.
    """
    needed, optional = {"version", "fixed", "draft", "verify"}, {"commit", "copied", "reading", "joined"}
    missing, unknown = needed - figures.keys(), figures.keys() - needed - optional
    for name in sorted(missing | unknown):
        raise InvalidRequest(f"{name} of a cost profile is {'missing' if name in missing else 'unknown'}", name)
    version = figures["version"]
    if not (isinstance(version, str) and version.isascii() and version.isalnum()):
        raise InvalidRequest("version of a cost profile must be letters and digits", "version")
    names = "fixed", "draft", "commit", "reading"
    fixed, draft, commit, reading = (_number(name, figures.get(name, 0.0)) for name in names)
    verify, copied, joined = (_table(name, figures.get(name, [])) for name in ("verify", "copied", "joined"))
    return CostProfile(version, fixed, draft, verify, commit, copied, reading, joined)


def _table(name: str, values: object) -> tuple[float, ...]:
    if not isinstance(values, list):
        raise InvalidRequest(f"{name} of a cost profile must be a list of seconds", name)
    return tuple(_number(name, seconds) for seconds in values)


def _number(name: str, value: object) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise InvalidRequest(f"{name} of a cost profile must be seconds, got {value!r}", name)
    return float(value)


def _check(holds: bool, name: str, problem: str) -> None:
    if not holds:
        raise InvalidRequest(f"{name} of a cost profile {problem}", name)


NOMINAL = CostProfile("nominal1", 0.02, 0.02, tuple(0.08 + 0.002 * rows for rows in range(21)), 0.002)
"""Where nothing is known of a deployment: a candidate at a quarter of a target's pass, further rows almost free."""


def paced(target: Sequence[float], draft: Sequence[float]) -> CostProfile:
    """The nominal costs, but for the passes: seconds over 1, 2, 4, ... rows, as replicas measured them."""
    rows = [1 << power for power in range(len(target))]
    steady = isotonic(list(target), [1.0] * len(target))
    verify = np.interp(range(1, min(rows[-1], MAX_ROWS) + 1), rows, steady)
    return replace(NOMINAL, version="paced", draft=draft[0], verify=tuple(verify.tolist()))


def isotonic(values: list[float], weights: list[float]) -> list[float]:
    """The nearest sequence that never falls, by weighted least squares: neighbours that do are pooled."""
    pools: list[tuple[float, float, int]] = []  # mean, weight, entries
    for value, weight in zip(values, weights, strict=True):
        pools.append((value, weight, 1))
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            (a, wa, na), (b, wb, nb) = pools[-2:]
            pools[-2:] = [((a * wa + b * wb) / (wa + wb), wa + wb, na + nb)]
    return [mean for mean, _, entries in pools for _ in range(entries)]


CostSource = Callable[[], CostProfile]
"""The costs as of now."""


@dataclass(frozen=True, slots=True)
class Constant:
    """A `CostSource` of costs that stay as they are."""

    profile: CostProfile

    def __call__(self) -> CostProfile:
        return self.profile


def nominal() -> CostProfile:
    """The source where nobody measures."""
    return NOMINAL
