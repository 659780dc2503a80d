"""When to stop drafting: one small class a rule. A rule turns the adaptive state into the plan of one round.

off       no candidates: the target alone
fixed     always n candidates; with n = 5 the paper's Vanilla
adasd     stop after the candidate whose entropy exceeds T_G, the mean entropy of rejected candidates; at most W
          (AdaSD, arXiv 2512.11280, section 4). No threshold before the first rejection; the tripping candidate is sent.
marginal  stop where the tokens expected of drafting on are worth less than its time; see `adasd.core.marginal`
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol, Self

from adasd.core.adaptive import AcceptanceState
from adasd.core.costs import CostSource, nominal
from adasd.core.errors import InvalidRequest
from adasd.core.marginal import Marginal
from adasd.core.outlook import NOTHING_KNOWN, Outlook
from adasd.core.types import DraftPlan

WINDOW = 20
"""W, the paper's bound on the candidates of a round."""
VANILLA_CANDIDATES = 5
STOPPING_RULES = ("off", "fixed", "adasd", "marginal")


class StoppingRule(Protocol):
    @property
    def most(self) -> int:
        """Candidates of a block, at most."""
        ...

    def plan(self, state: AcceptanceState, outlook: Outlook = NOTHING_KNOWN) -> DraftPlan: ...

    def held(self) -> StoppingRule:
        """The rule as it stands now, for rounds that follow from one another: a pure function of the session."""
        ...


class _Unmoved:
    """Of rules that look at nothing but the session."""

    __slots__ = ()

    def held(self) -> Self:
        return self


@dataclass(frozen=True, slots=True)
class Off(_Unmoved):
    """Never draft."""

    @property
    def most(self) -> int:
        return 0

    def plan(self, state: AcceptanceState, outlook: Outlook = NOTHING_KNOWN) -> DraftPlan:
        return DraftPlan(0)


@dataclass(frozen=True, slots=True)
class Fixed(_Unmoved):
    """Always draft `candidates`."""

    candidates: int = VANILLA_CANDIDATES

    @property
    def most(self) -> int:
        return self.candidates

    def plan(self, state: AcceptanceState, outlook: Outlook = NOTHING_KNOWN) -> DraftPlan:
        return DraftPlan(self.candidates)


@dataclass(frozen=True, slots=True)
class AdaSDStopping(_Unmoved):
    """T_G: the running mean of the entropies (bits) of rejected candidates."""

    window: int = WINDOW

    @property
    def most(self) -> int:
        return self.window

    def plan(self, state: AcceptanceState, outlook: Outlook = NOTHING_KNOWN) -> DraftPlan:
        threshold = state.rejected_entropy.mean
        return DraftPlan(self.window, math.inf if threshold is None else threshold)


def stopping_rule(name: str, max_candidates: int | None, costs: CostSource = nominal) -> StoppingRule:
    """The rule of that name. max_candidates: n of `fixed`, W of `adasd` and `marginal`, refused for `off` unless 0.

    costs: what `marginal` weighs candidates against.
    """
    if name not in STOPPING_RULES:
        known = ", ".join(STOPPING_RULES)
        raise InvalidRequest(f"unknown stopping rule {name!r}; known: {known}", "speculation.stopping")
    if name == "off" and max_candidates:
        raise InvalidRequest("max_candidates has no meaning with stopping 'off'", "speculation.max_candidates")
    if name != "off" and max_candidates is not None and max_candidates < 1:
        raise InvalidRequest("max_candidates must be at least 1; use stopping 'off'", "speculation.max_candidates")
    match name:
        case "fixed":
            return Fixed(max_candidates or VANILLA_CANDIDATES)
        case "adasd":
            return AdaSDStopping(max_candidates or WINDOW)
        case "marginal":
            return Marginal(max_candidates or WINDOW, costs)
        case _:
            return Off()
