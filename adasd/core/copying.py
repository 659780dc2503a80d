"""Candidates copied from the text itself, where that earns more than asking the drafter."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from adasd.core.adaptive import AcceptanceState
from adasd.core.context import Context
from adasd.core.foresight import foresee
from adasd.core.marginal import Marginal
from adasd.core.stopping import StoppingRule
from adasd.core.types import DraftPlan, Foreseen


def copying_for(stopping: StoppingRule, eos_ids: Collection[int], wanted: bool) -> Copying | None:
    """Under the rule that weighs costs, if it is wanted."""
    return Copying(stopping, eos_ids) if wanted and isinstance(stopping, Marginal) else None


@dataclass(frozen=True, slots=True)
class Copying:
    """A second source of candidates for the rule that knows what they cost: their price is the longer pass alone.

    rule: what weighs them, and the going rate. eos_ids: nothing is copied past one.
    """

    rule: Marginal
    eos_ids: Collection[int]

    def plan(self, drafted: DraftPlan, state: AcceptanceState, context: Context, room: int, run: int = 1) -> DraftPlan:
        """The best of a plan of the rule's, a block of what the text foresees, and such a block that begins a run.

        room: candidates, at most. run: rounds.

        They are compared over a run's time: what would be worth a message once is thought to be so again.
        """
        foreseen = foresee(context.array, min(room, self.rule.window))
        if foreseen is None:
            return drafted
        drafted, worth = replace(drafted, foreseen=foreseen), drafted.worth
        if worth is None or worth.rate == 0.0:  # the worth of a probe knows no going rate
            worth = self.rule.worth(state.prospects)
        standing = state.prospects.foresight.standing(self._to_the_end(foreseen))
        other = worth.gain(drafted.max_candidates) if drafted.decision == "draft" else 0.0
        copies, gain = worth.copied(standing)
        together, gain_of_all = worth.copied(standing, joined=True)
        rounds = min(run, room + 1 - together)
        if rounds <= 1 or gain_of_all <= rounds * gain:
            together, gain_of_all, rounds = copies, gain, 1
        if gain_of_all <= rounds * other:
            return drafted
        return DraftPlan(together, coupled=drafted.coupled, worth=worth, foreseen=foreseen, copies=True, rounds=rounds)

    def _to_the_end(self, foreseen: Foreseen) -> Foreseen:
        ends = [place for place, token in enumerate(foreseen.ids) if token in self.eos_ids]
        return replace(foreseen, ids=foreseen.ids[: ends[0] + 1]) if ends else foreseen
