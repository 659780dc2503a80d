"""Candidates copied from the text itself, where that earns more than asking the drafter."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from adasd.core.adaptive import AcceptanceState
from adasd.core.context import Text
from adasd.core.foresight import foresee
from adasd.core.marginal import Marginal
from adasd.core.stopping import StoppingRule
from adasd.core.types import DraftPlan, Foreseen
from adasd.core.worth import Worth


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

    def held(self) -> Copying:
        """With the costs as they are now."""
        return replace(self, rule=self.rule.held())

    def plan(self, drafted: DraftPlan, state: AcceptanceState, text: Text, room: int, run: int = 1) -> DraftPlan:
        """The best of a plan of the rule's, a block of what the text foresees, and such a block that begins a run.

        room: candidates, at most. run: rounds.
        """
        foreseen = foresee(text.array, min(room, self.rule.window))
        if foreseen is None:
            return drafted
        drafted, worth = replace(drafted, foreseen=foreseen), drafted.worth
        if worth is None or worth.rate == 0.0:  # the worth of a probe knows no going rate
            worth = self.rule.worth(state.prospects)
        standing = state.prospects.foresight.standing(self._to_the_end(foreseen))
        other = worth.gain(drafted.max_candidates) if drafted.decision == "draft" else 0.0
        copies, rounds, gain = _block(worth, standing, room, run)
        if gain <= other:
            return drafted
        return DraftPlan(copies, coupled=drafted.coupled, worth=worth, foreseen=foreseen, copies=True, rounds=rounds)

    def _to_the_end(self, foreseen: Foreseen) -> Foreseen:
        ends = [place for place, token in enumerate(foreseen.ids) if token in self.eos_ids]
        return replace(foreseen, ids=foreseen.ids[: ends[0] + 1]) if ends else foreseen


def _block(worth: Worth, standing: Sequence[float], room: int, run: int) -> tuple[int, int, float]:
    """Candidates, rounds, and tokens gained in each of these: of a block by itself, or of one that begins a run.

    What is worth a message of its own once is thought to be so in every round of a run's time.
    """
    copies, gain = worth.copied(standing)
    joined, of_all = worth.copied(standing, joined=True)
    rounds = min(run, room + 1 - joined)
    return (copies, 1, gain) if rounds <= 1 or of_all <= rounds * gain else (joined, rounds, of_all / rounds)
