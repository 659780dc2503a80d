"""How a text's rounds are planned, one after the other, by whoever decodes it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from adasd.core.adaptive import AcceptanceState
from adasd.core.outlook import Outlook
from adasd.core.stopping import AdaSDStopping, Fixed, StoppingRule
from adasd.core.types import DraftPlan


@dataclass(frozen=True, slots=True)
class Course:
    """stopping: the rule. limit: committed length at which the text ends. coupled: as of `DraftPlan`.

    rounds: how many to take for one message, at most.
    """

    stopping: StoppingRule
    limit: int
    coupled: bool = False
    rounds: int = 1

    def plan(self, state: AcceptanceState, base: int, generated: int = 0) -> DraftPlan:
        """Of the next round, after `base` committed ids, of which the models generated so many.

        Never past the limit: a round of n candidates commits up to n + 1 tokens.
        """
        room = self.limit - base - 1
        plan = self.stopping.plan(state, Outlook(base, generated, room)).limited(room)
        return replace(plan, coupled=True) if self.coupled else plan

    @property
    def known_everywhere(self) -> bool:
        """Whether its plans depend on nothing but the session: not on costs, which only the gateway knows."""
        return isinstance(self.stopping, Fixed | AdaSDStopping)
