"""What a round costs in this deployment: as its operator states it, and as this process sees it."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import orjson

from adasd.core.costs import NOMINAL, CostMeter, CostProfile, CostSource, Observation, stated_profile
from adasd.core.errors import InvalidRequest
from adasd.core.messages import Timing

SETTING = "cost_profile"


def load_profile(path: Path | None) -> CostProfile:
    """The profile in a JSON file; the nominal one without a file. Raises InvalidRequest naming the setting."""
    if path is None:
        return NOMINAL
    try:
        figures = orjson.loads(path.read_bytes())
    except (OSError, orjson.JSONDecodeError) as error:
        raise InvalidRequest(f"{SETTING} {path}: {error}", SETTING) from error
    if not isinstance(figures, dict):
        raise InvalidRequest(f"{SETTING} {path}: must be a JSON object", SETTING)
    try:
        return stated_profile(figures)
    except InvalidRequest as error:
        raise InvalidRequest(f"{SETTING} {path}: {error}", SETTING) from error


class LiveCosts:
    """The costs of now, from the rounds of all generations of this process.

    prior: the stated ones, where they start from.
    """

    def __init__(self, prior: CostProfile = NOMINAL) -> None:
        self.prior = prior
        self._meter = CostMeter(prior)
        self._profile: CostProfile | None = None

    def add(self, seen: Observation) -> None:
        self._meter, self._profile = self._meter.after(seen), None

    def profile(self) -> CostProfile:
        """A `CostSource`."""
        if self._profile is None:
            self._profile = self._meter.profile()
        return self._profile

    def source(self, pinned: bool) -> CostSource:
        """The costs of now, or where they are pinned the stated ones."""
        return (lambda: self.prior) if pinned else self.profile

    def figures(self) -> str:
        """The costs of now as `load_profile` reads them; whoever states them gives them a version of their own."""
        return orjson.dumps(asdict(self.profile())).decode()


class RoundWatch:
    """Puts the times of one generation's rounds together; a round is told once it is committed.

    Left out: the first round, a prefill; the passes of a drafter that was not asked or did not answer the round before,
    because it has ids to catch up with.
    """

    def __init__(self, costs: LiveCosts) -> None:
        self._costs = costs
        self._prefill = True
        self._warm = False  # the drafter is as far as the text
        self._drafted: tuple[float, Timing, int] | None = None
        self._verified = (0.0, 0)

    def drafted(self, seconds: float, timing: Timing, candidates: int) -> None:
        """An empty block says nothing: perhaps nobody answered."""
        if candidates:
            self._drafted = (seconds, timing, candidates)

    def verified(self, seconds: float, candidates: int) -> None:
        self._verified = (seconds, candidates)

    def committed(self, seconds: float) -> None:
        verify, candidates = self._verified
        drafting, work, steps = self._drafting()
        self._warm, self._drafted = self._drafted is not None, None
        if not self._prefill:
            self._costs.add(Observation(candidates, verify, seconds, drafting, work, steps))
        self._prefill = False

    def _drafting(self) -> tuple[float | None, float, int]:
        """As an observation has it. Of a drafter that keeps no account all the time is work."""
        if self._drafted is None:
            return None, 0.0, 0
        seconds, timing, candidates = self._drafted
        if timing.forwards:
            return seconds, timing.forward + timing.rules, timing.forwards if self._warm else 0
        return (seconds, seconds, candidates) if self._warm else (None, 0.0, 0)
