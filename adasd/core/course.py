"""How a text's rounds are planned, one after the other, by whoever decodes it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from adasd.core.adaptive import AcceptanceState
from adasd.core.context import Text
from adasd.core.copying import Copying
from adasd.core.outlook import Outlook
from adasd.core.stopping import StoppingRule
from adasd.core.types import DraftPlan


@dataclass(frozen=True, slots=True)
class Course:
    """stopping: the rule. limit: committed length at which the text ends. coupled: as of `DraftPlan`. copying: a second
    source of candidates, or None.

    rounds: how many to take for one message, at most.
    """

    stopping: StoppingRule
    limit: int
    coupled: bool = False
    copying: Copying | None = None
    rounds: int = 1

    def plan(self, state: AcceptanceState, text: Text, run: int = 1) -> DraftPlan:
        """Of the next round. Never past the limit: a round of n candidates commits up to n + 1 tokens.

        run: rounds that may follow copied candidates for the same message, and have none; themselves included.
        """
        room = self.limit - text.base - 1
        plan = self.stopping.plan(state, Outlook(text.base, text.generated, room)).limited(room)
        plan = replace(plan, coupled=True) if self.coupled else plan
        return plan if self.copying is None else self.copying.plan(plan, state, text, room, run)

    def held(self, rounds: int) -> Course:
        """For so many rounds, which anybody can plan who knows the session."""
        copying = self.copying and self.copying.held()
        return replace(self, stopping=self.stopping.held(), copying=copying, rounds=rounds)
