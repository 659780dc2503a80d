"""The stopping rule `marginal`: as many candidates as are worth their time, none if none are."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from adasd.core.adaptive import AcceptanceState
from adasd.core.costs import Constant, CostProfile, CostSource, nominal
from adasd.core.outlook import NOTHING_KNOWN, Outlook
from adasd.core.prospects import Prospects
from adasd.core.types import DraftPlan
from adasd.core.worth import ENTROPY_NODES, Worth


@dataclass(frozen=True, slots=True)
class Marginal:
    """AdaSD's stop made aware of cost: draft while the tokens expected are worth more than the time they take.

    window: bound on a block. costs: C as of now; a constant where the text must not depend on the clock.
    """

    window: int
    costs: CostSource = nominal

    @property
    def most(self) -> int:
        return self.window

    def held(self) -> Marginal:
        """With the costs as they are now."""
        return replace(self, costs=Constant(self.costs()))

    def worth(self, prospects: Prospects) -> Worth:
        """What candidates are expected to earn at the going rate, whatever their entropy."""
        return self._weighed(prospects).worth

    def _weighed(self, prospects: Prospects) -> Weighed:
        return weighed(prospects.mean, prospects.speed, self.costs(), self.window)

    def plan(self, state: AcceptanceState, outlook: Outlook = NOTHING_KNOWN) -> DraftPlan:
        """What the drafter has to read first is paid once, for whatever the text may still earn by it."""
        prospects, known = state.prospects, self._weighed(state.prospects)
        worth = known.worth
        entry = worth.rate * worth.costs.reading * prospects.unread(outlook.base)
        if known.pays and (not entry or entry <= known.gain * outlook.rounds):
            return DraftPlan(self.window, worth=replace(worth, acceptance=prospects.acceptance()))
        if not prospects.probe_due(known.loss + entry):
            return DraftPlan(0, worth=worth)
        return DraftPlan(known.probe, worth=replace(worth, acceptance=prospects.acceptance(), rate=0.0))


@dataclass(frozen=True)
class Weighed:
    """What follows from acceptance, pace and costs alone."""

    worth: Worth
    window: int

    @cached_property
    def pays(self) -> bool:
        """Whether to draft at all."""
        return self.worth.goes_on(0, 1.0, self.window)

    @cached_property
    def gain(self) -> float:
        """Tokens of the best block beyond its time."""
        return self.worth.gain(self.window)

    @cached_property
    def probe(self) -> int:
        """The length of a probe."""
        return _probe_length(self.worth, self.window)

    @cached_property
    def loss(self) -> float:
        """Tokens that it is expected to lose."""
        return self.worth.loss(self.probe)


@lru_cache(maxsize=256)
def weighed(mean: float, speed: float, costs: CostProfile, window: int) -> Weighed:
    """Weighed once for all rounds in which nothing has changed: without candidates nothing does."""
    going = max(speed, best_speed(mean, costs.rounds, window))
    level = (mean,) * ENTROPY_NODES  # without candidates nobody asks what their entropy foretells
    return Weighed(Worth(level, mean, going / costs.rounds[0], costs), window)


def _probe_length(worth: Worth, window: int) -> int:
    """What would be drafted if involving the drafter cost nothing; at least one."""
    free = replace(worth, costs=worth.costs.without_fixed)
    length, stands = 1, worth.mean
    while length < window and free.goes_on(length, stands, window):
        length, stands = length + 1, stands * worth.mean
    return length


def best_speed(mean: float, rounds: tuple[float, ...], window: int) -> float:
    """What blocks of the best fixed length would earn, in tokens per time of a plain round."""
    best, tokens, term = 1.0 / rounds[0], 1.0, 1.0
    for seconds in rounds[1 : window + 1]:
        term *= mean
        tokens += term
        best = max(best, tokens / seconds)
    return best * rounds[0]
