"""The stopping rule `marginal`: as many candidates as are worth their time, none if none are."""

from __future__ import annotations

from dataclasses import dataclass, replace

from adasd.core.adaptive import AcceptanceState
from adasd.core.costs import CostSource, nominal
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

    def worth(self, prospects: Prospects) -> Worth:
        """What candidates are expected to earn at the going rate, whatever their entropy."""
        costs = self.costs()
        speed = max(prospects.speed, best_speed(prospects.mean, costs.rounds, self.window))
        level = (prospects.mean,) * ENTROPY_NODES  # without candidates nobody asks what their entropy foretells
        return Worth(level, prospects.mean, speed / costs.rounds[0], costs)

    def plan(self, state: AcceptanceState, outlook: Outlook = NOTHING_KNOWN) -> DraftPlan:
        """What the drafter has to read first is paid once, for whatever the text may still earn by it."""
        prospects = state.prospects
        worth = self.worth(prospects)
        entry = worth.rate * worth.costs.reading * prospects.unread(outlook.base)
        pays = worth.goes_on(0, 1.0, self.window)
        if pays and (not entry or entry <= worth.gain(self.window) * outlook.rounds):
            return DraftPlan(self.window, worth=replace(worth, acceptance=prospects.acceptance()))
        length = self._probe_length(worth)
        if not prospects.probe_due(worth.loss(length) + entry):
            return DraftPlan(0, worth=worth)
        return DraftPlan(length, worth=replace(worth, acceptance=prospects.acceptance(), rate=0.0))

    def _probe_length(self, worth: Worth) -> int:
        """What would be drafted if involving the drafter cost nothing; at least one."""
        free = replace(worth, costs=worth.costs.without_fixed)
        length, stands = 1, worth.mean
        while length < self.window and free.goes_on(length, stands, self.window):
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
