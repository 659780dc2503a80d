"""What a gateway's sessions have found candidates to be worth, for those that begin after them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from adasd.core.prospects import CERTAIN, FIRST_GUESS, LEAST, PROBE_ROUNDS, Prospects
from adasd.core.types import Draft, DraftPlan
from adasd.core.verdicts import Verdict

REMEMBERED = 16
"""Sessions, the last ones that had candidates judged."""
ENOUGH = 4.0
"""Judged candidates of a session that count, so that those which go on drafting do not outvote those which gave up."""
SPREAD, SPREAD_WEIGHT = 0.2, 4.0
"""How sessions differ before anything is known, and how many sessions that is worth."""
SAMPLES = 64.0
"""What is passed on of the shape counts as so many candidates at most: a session's own soon outweigh them."""


@dataclass(frozen=True, slots=True)
class Share:
    """A session's accepted and judged candidates."""

    accepted: float
    judged: float

    def more(self, accepted: int, judged: int) -> Share:
        return Share(self.accepted + accepted, self.judged + judged)

    @property
    def rate(self) -> float:
        return self.accepted / self.judged

    @property
    def weight(self) -> float:
        return min(self.judged, ENOUGH)


@dataclass(frozen=True, slots=True)
class Experience:
    """pool: as if all rounds were of one session. sessions: the last ones, by id, the latest last.

    A session begins hopeful by as much as sessions differ: where all are alike it need not find out for itself, and
    where some are worth it, a few candidates tell whether this is one of them.
    """

    pool: Prospects = field(default_factory=Prospects)
    sessions: Mapping[bytes, Share] = field(default_factory=dict)

    def after(self, session: bytes, plan: DraftPlan, draft: Draft, verdict: Verdict) -> Experience:
        """With another round, of this session. A block that ended up empty counts as a refusal, as in `Prospects`."""
        new = replace(self, pool=self.pool.after(plan, draft, verdict))
        if plan.worth is None or plan.max_candidates == 0 or draft.copied:
            return new
        share = self.sessions.get(session, Share(0.0, 0.0)).more(verdict.accepted, max(1, len(verdict.judgements)))
        others = [(other, known) for other, known in self.sessions.items() if other != session]
        return replace(new, sessions=dict([*others, (session, share)][-REMEMBERED:]))

    def begin(self) -> tuple[Prospects, Experience]:
        """What a session begins with, and what is left: idle rounds count for one probe, not for one a session."""
        if not self.sessions:
            return Prospects(), self
        pool, level = self.pool, self._level()
        share = min(1.0, SAMPLES / max(1.0, float(pool.taken.sum() + pool.refused.sum())))
        first = replace(
            pool,
            taken=pool.taken * share,
            refused=pool.refused * share,
            mean=min(1.0 - CERTAIN, level + self._spread(level)),
            weight=LEAST,
            idle=min(pool.idle, PROBE_ROUNDS),
            promising=False,
            begun=False,
            foresight=pool.foresight.faded(),
        )
        return first, replace(self, pool=replace(pool, idle=0))

    def _level(self) -> float:
        """Mean acceptance, every session counting alike; a first guess of the weight LEAST among them."""
        shares = self.sessions.values()
        total = LEAST + sum(share.weight for share in shares)
        return (LEAST * FIRST_GUESS + sum(share.weight * share.rate for share in shares)) / total

    def _spread(self, level: float) -> float:
        """Standard deviation between sessions: what is left of their variance without that of so few coins."""
        coin = level * (1.0 - level)
        squares = sum((share.rate - level) ** 2 - coin / share.judged for share in self.sessions.values())
        return math.sqrt(max(0.0, (SPREAD_WEIGHT * SPREAD**2 + squares) / (SPREAD_WEIGHT + len(self.sessions))))
