"""Where a generation stands: adaptive state, counters, finish reason. `GenerationState.after` is the only reducer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from operator import attrgetter
from typing import Any

from adasd.core.acceptance import Labels
from adasd.core.adaptive import UNWEIGHED, AcceptanceState
from adasd.core.types import Draft, DraftPlan, FinishReason
from adasd.core.verdicts import Verdict


@dataclass(frozen=True, slots=True)
class Counters:
    """What one generation did. committed tokens = accepted + rounds, less one where the last block was cut.

    rounds: each a pass of the target, or two where a block is read in parts. drafts: rounds with candidates.
    drafted, accepted: candidates.
    relaxed: accepted only by relaxation; loss_total, loss_max: ln(q/p) in nats over those.
    floored: candidates a rule would have accepted although the warped target gives them probability 0.
    copied: candidates that needed no drafter; among `drafted`.
    """

    rounds: int = 0
    drafts: int = 0
    drafted: int = 0
    accepted: int = 0
    relaxed: int = 0
    loss_total: float = 0.0
    loss_max: float = 0.0
    floored: int = 0
    copied: int = 0

    def after(self, draft: Draft, verdict: Verdict) -> Counters:
        losses = [judgement.loss for judgement in verdict.judgements if judgement.relaxed]
        return Counters(
            rounds=self.rounds + verdict.rounds,
            drafts=self.drafts + (len(draft) > 0),
            drafted=self.drafted + len(draft),
            accepted=self.accepted + verdict.accepted,
            relaxed=self.relaxed + len(losses),
            loss_total=self.loss_total + sum(losses),
            loss_max=max([self.loss_max, *losses]),
            floored=self.floored + sum(judgement.floored for judgement in verdict.judgements),
            copied=self.copied + (len(draft) if draft.copied else 0),
        )

    def as_dict(self) -> dict[str, int | float]:
        return dict(zip(self.__slots__, _values(self), strict=True))

    def since(self, before: Counters) -> dict[str, int | float]:
        """Those that have changed."""
        each = zip(self.__slots__, _values(self), _values(before), strict=True)
        return {name: value for name, value, old in each if value != old}

    @classmethod
    def restored(cls, stored: Mapping[str, float]) -> Counters:
        """The inverse of `as_dict`, of numbers that have lost their type; what an older release did not count is 0."""
        defaults: dict[str, Any] = {counter.name: counter.default for counter in fields(cls)}
        return cls(**{name: type(default)(stored.get(name, 0)) for name, default in defaults.items()})

    @property
    def mean_acceptance_length(self) -> float:
        """1 + accepted / rounds: committed tokens per round."""
        return 1 + self.accepted / self.rounds if self.rounds else 1.0

    @property
    def acceptance_rate(self) -> float | None:
        """accepted / drafted; None if nothing was drafted."""
        return self.accepted / self.drafted if self.drafted else None


_values: Callable[[Counters], tuple[int | float, ...]] = attrgetter(*Counters.__slots__)


@dataclass(frozen=True, slots=True)
class GenerationState:
    """Everything about a running generation except its tokens. `counters.rounds` numbers the next round."""

    acceptance: AcceptanceState = field(default_factory=AcceptanceState)
    counters: Counters = field(default_factory=Counters)
    finish_reason: FinishReason | None = None

    def after(
        self, draft: Draft, verdict: Verdict, labels: Labels, finish: FinishReason | None, plan: DraftPlan = UNWEIGHED
    ) -> GenerationState:
        """The state after one round or run, which has already been cut at the earliest boundary."""
        acceptance = self.acceptance.after(draft, verdict, labels, plan)
        return GenerationState(acceptance, self.counters.after(draft, verdict), finish)
