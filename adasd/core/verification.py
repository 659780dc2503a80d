"""From a block of candidates to a verdict: judge left to right, then emit one token of the target's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from adasd.core.acceptance import ADASD, ADASD_ANCHORED, EXACT, AcceptanceRule, Labels
from adasd.core.backend import TargetRows
from adasd.core.density import Posterior
from adasd.core.draws import DrawKey, Draws, Purpose
from adasd.core.errors import InvalidRequest
from adasd.core.types import Draft
from adasd.core.verdicts import Emission, Judgement, Verdict

DrawsT = TypeVar("DrawsT", bound=Draws)


class Verification(Protocol):
    """One acceptance method, end to end. coupled: drafter and target share Gumbel noise."""

    @property
    def labels(self) -> Labels: ...

    @property
    def coupled(self) -> bool: ...

    def verify(
        self,
        target: TargetRows[DrawsT],
        draft: Draft,
        posterior: Posterior,
        base: int,
        draws: DrawsT,
        judged: Sequence[Judgement] = (),
    ) -> Verdict:
        """judged: the first candidates, which stand; the target's rows are those of the others."""
        ...


@dataclass(frozen=True, slots=True)
class RatioVerification:
    """Judge each candidate by p, q and d; a rejection emits from the residual norm([p - q]+)."""

    rule: AcceptanceRule
    coupled: bool = False

    @property
    def labels(self) -> Labels:
        return self.rule.labels

    def verify(
        self,
        target: TargetRows[DrawsT],
        draft: Draft,
        posterior: Posterior,
        base: int,
        draws: DrawsT,
        judged: Sequence[Judgement] = (),
    ) -> Verdict:
        judgements, first = [*judged], len(judged)
        for offset, evidence in enumerate(target.evidence(draft.after(first)), first):
            key = DrawKey(base, offset, Purpose.ACCEPT)
            judgements.append(self.rule.judge(evidence, posterior, key, draws))
            if not judgements[-1].accepted:
                break
        accepted = sum(judgement.accepted for judgement in judgements)
        rejected = accepted < len(draft)
        minus = draft.rows[accepted] if rejected else None
        token = target.emit(accepted - first, minus, DrawKey(base, accepted, Purpose.EMIT), draws)
        emission: Emission = "recovered" if rejected else "bonus"
        return Verdict((*draft.ids[:accepted], token), accepted, emission, tuple(judgements))


@dataclass(frozen=True, slots=True)
class CoupledVerification:
    """Shared Gumbel noise: the text is the target's own seeded sample, whatever the draft or the block length."""

    coupled: bool = True
    labels: Labels = "exact"

    def verify(
        self,
        target: TargetRows[DrawsT],
        draft: Draft,
        posterior: Posterior,
        base: int,
        draws: DrawsT,
        judged: Sequence[Judgement] = (),
    ) -> Verdict:
        accepted = len(judged)
        tokens = *draft.ids[:accepted], *target.coupled(base + accepted, draws)
        while accepted < len(draft) and draft.ids[accepted] == tokens[accepted]:
            accepted += 1
        judgements = tuple(Judgement(0.0, i < accepted, i < accepted) for i in range(min(accepted + 1, len(draft))))
        emission: Emission = "recovered" if accepted < len(draft) else "bonus"
        return Verdict(tokens[: accepted + 1], accepted, emission, judgements)


VERIFICATIONS: dict[str, Verification] = {
    "exact": RatioVerification(EXACT),
    "adasd": RatioVerification(ADASD),
    "adasd-anchored": RatioVerification(ADASD_ANCHORED),
    "coupled": CoupledVerification(),
}


def judging(name: str, draft: Draft) -> str:
    """The acceptance method that a block is judged by; nothing about a copy is adaptive."""
    return "exact" if draft.copied and not verification(name).coupled else name


def verification(name: str) -> Verification:
    """The acceptance method of that name; an unknown one is refused with the list."""
    if name not in VERIFICATIONS:
        known = ", ".join(VERIFICATIONS)
        raise InvalidRequest(f"unknown acceptance rule {name!r}; known: {known}", "speculation.acceptance")
    return VERIFICATIONS[name]
