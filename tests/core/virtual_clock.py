"""Decoding against a clock that only costs move: the product's rule, drafting and reducer; acceptance by coin."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from adasd.core.backend import Proposal
from adasd.core.costs import CostProfile
from adasd.core.drafting import draft_block
from adasd.core.draws import CounterDraws, DrawKey
from adasd.core.metering import CostMeter, Observation
from adasd.core.progress import GenerationState
from adasd.core.rows import PointRow
from adasd.core.stopping import StoppingRule
from adasd.core.types import Decision, Draft, DraftPlan, FloatArray, IntArray
from adasd.core.verdicts import Judgement, Verdict

ROOM = 1000
Acceptance = Callable[[np.random.Generator], tuple[float, float]]
"""The next position's probability that a candidate stands, and the entropy of the draft's row there."""


def constant(a: float) -> Acceptance:
    return lambda _: (a, 1.0)


def foretold(low: float, high: float) -> Acceptance:
    """Easy and hard positions, half of each; the entropy tells them apart, if not quite."""

    def position(rng: np.random.Generator) -> tuple[float, float]:
        easy = rng.random() < 0.5
        return (high if easy else low), float(rng.gamma(2.0, 0.3 if easy else 1.2))

    return position


class OneToken(CounterDraws):
    """A row has one token, so nothing needs drawing."""

    def categorical(self, key: DrawKey, weights: FloatArray | IntArray) -> int:
        return 0


@dataclass
class Clocked:
    """One generation. costs: what time really takes; may be changed between rounds.

    time, tokens: so far; tokens are those expected of the blocks drafted, so that luck does not show.
    meter: shown every round, if there is one; with noise, and one time in a hundred is an outlier.
    """

    acceptance: Acceptance
    costs: CostProfile
    seed: int = 1
    meter: CostMeter | None = None
    state: GenerationState = field(default_factory=GenerationState)
    time: float = 0.0
    tokens: float = 0.0
    plans: list[DraftPlan] = field(default_factory=list)
    drafts: list[Draft] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)

    def run(self, rule: StoppingRule, rounds: int) -> float:
        """Tokens per time over so many rounds."""
        time, tokens = self.time, self.tokens
        for _ in range(rounds):
            self._round(rule.plan(self.state.acceptance).limited(ROOM))
        return (self.tokens - tokens) / (self.time - time)

    def share(self, decision: Decision, last: int) -> float:
        """How much of the last rounds was planned so."""
        return sum(plan.decision == decision for plan in self.plans[-last:]) / last

    def _round(self, plan: DraftPlan) -> None:
        positions = [self.acceptance(self.rng) for _ in range(plan.max_candidates)]
        steps = 0

        def propose(candidates: Sequence[int]) -> Proposal:
            nonlocal steps
            steps += 1
            return Proposal(positions[len(candidates)][1], PointRow(7))

        draft = draft_block(propose, plan, len(self.plans), OneToken(0), ())
        self._spend(len(draft), steps)
        self.tokens += 1.0 + sum(np.cumprod([p for p, _ in positions[: len(draft)]]))
        verdict = self._judged(draft, [p for p, _ in positions])
        self.state = self.state.after(draft, verdict, "exact", None, plan)
        self.plans.append(plan)
        self.drafts.append(draft)
        self.verdicts.append(verdict)

    def _judged(self, draft: Draft, standing: list[float]) -> Verdict:
        judgements: list[Judgement] = []
        for p in standing[: len(draft)]:
            stands = bool(self.rng.random() < p)
            judgements.append(Judgement(0.5, stands, stands))
            if not stands:
                break
        accepted = sum(judgement.accepted for judgement in judgements)
        return Verdict((7,) * (accepted + 1), accepted, "bonus", tuple(judgements))

    def profile(self) -> CostProfile:
        """The costs as the meter has them."""
        assert self.meter is not None
        return self.meter.profile()

    def _spend(self, candidates: int, steps: int) -> None:
        costs = self.costs
        fixed, work = (costs.fixed, steps * costs.draft) if steps else (0.0, 0.0)
        verify = costs.passes[candidates]
        self.time += fixed + work + verify + costs.commit
        if self.meter is not None:
            seen_work = self._seen(work)
            drafting = seen_work + self._seen(fixed) if steps else None
            seen = Observation(candidates, self._seen(verify), self._seen(costs.commit), drafting, seen_work, steps)
            self.meter = self.meter.after(seen)

    def _seen(self, seconds: float) -> float:
        outlier = 8.0 if self.rng.random() < 0.01 else 1.0
        return seconds * outlier * float(np.exp(0.1 * self.rng.normal()))


def best_fixed(a: float, costs: CostProfile, window: int) -> float:
    """Tokens per time of the best constant block length, 0 included, where every candidate stands with probability a.

    No rule can do better: every position is like every other.
    """
    return max(sum(a**i for i in range(k + 1)) / costs.rounds[k] for k in range(window + 1))
