"""What a session learns about the worth of its candidates: acceptance, how entropy foretells it, and the going rate.

P(A | h) is AdaSD's two-density estimate on the other signal: h is the draft's entropy instead of the distance. Its
shape comes from all judged candidates, its level from the recent ones. All of it is per judged candidate: what follows
the first rejection was never verified.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from adasd.core.foresight import FORESIGHT_BYTES, Foresight
from adasd.core.types import Draft, DraftPlan, FloatArray
from adasd.core.verdicts import Verdict
from adasd.core.worth import ENTROPY_NODES, entropy_place

FIRST_GUESS = 0.7
"""Acceptance before anything is known, with the weight LEAST: high enough to find out."""
LEAST, MOST = 4.0, 64.0
"""Judged candidates that the level remembers."""
RATE_ROUNDS = 32
"""Rounds that the going rate remembers."""
PROBE_ROUNDS = 100
"""While off, a probe that is expected to lose one token comes once in so many rounds; one that loses less, oftener."""
PROBE_CREDIT = 50
"""Rounds by which it comes sooner at the start, and where the last one went well and little was known."""
HALF_LIFE = 12
"""Rounds without candidates after which half of what the level knew is forgotten."""
FULL = 512.0
"""Samples after which the shape's older half counts half."""
CERTAIN = 1e-3

_Counts = NDArray[np.float32]
_STRUCT = struct.Struct("<ddddIHH")
FORMER_BYTES = _STRUCT.size + 2 * 4 * ENTROPY_NODES
"""Before anything was foreseen."""
PROSPECT_BYTES = FORMER_BYTES + FORESIGHT_BYTES
_NODES = np.arange(ENTROPY_NODES)
_SQUARES: FloatArray = np.square(np.subtract.outer(_NODES, _NODES)).astype(np.float64)


def _no_counts() -> _Counts:
    return np.zeros(ENTROPY_NODES, dtype=np.float32)


@dataclass(frozen=True, slots=True, eq=False)
class Prospects:
    """taken, refused: judged candidates by entropy, spread over two nodes each. float32 [ENTROPY_NODES].

    mean: acceptance of late, of the weight `weight`. tokens, work: slow averages a round; a round of plain decoding is
    a work of 1. idle: rounds since the last judged candidate. promising: the last block stood as a whole; so does the
    first guess. begun: the drafter has read the text, up to the idle rounds. foresight: of what the text itself
    foretells; all else is of the drafter's candidates.
    """

    taken: _Counts = field(default_factory=_no_counts)
    refused: _Counts = field(default_factory=_no_counts)
    mean: float = FIRST_GUESS
    weight: float = LEAST
    tokens: float = 1.0
    work: float = 1.0
    idle: int = 0
    promising: bool = True
    begun: bool = False
    foresight: Foresight = field(default_factory=Foresight)

    def probe_due(self, loss: float) -> bool:
        """Whether a round that would have no candidates should find out about them, at an expected loss in tokens."""
        surprising = self.promising and self.weight <= 2 * LEAST
        return self.idle + PROBE_CREDIT * surprising >= PROBE_ROUNDS * loss

    def unread(self, base: int) -> int:
        """Ids of a text of so many that the drafter has not read, as far as can be told from here."""
        return min(base, round(self.idle * self.tokens)) if self.begun else base

    @property
    def speed(self) -> float:
        """Tokens per time of a plain round, of late."""
        return self.tokens / self.work

    def acceptance(self) -> tuple[float, ...]:
        """P(A | h) at the nodes; the mean where there are no samples."""
        taken, refused = float(self.taken.sum()), float(self.refused.sum())
        if taken + refused == 0.0:
            return (self.mean,) * ENTROPY_NODES
        density_taken, density_refused = _density(self.taken), _density(self.refused)
        pooled = (taken * density_taken + refused * density_refused) / (taken + refused)
        a = self.mean * (taken * density_taken + LEAST * pooled) / (taken + LEAST)
        r = (1.0 - self.mean) * (refused * density_refused + LEAST * pooled) / (refused + LEAST)
        return tuple(np.clip(a / (a + r + 1e-300), CERTAIN, 1.0 - CERTAIN).tolist())

    def after(self, plan: DraftPlan, draft: Draft, verdict: Verdict) -> Prospects:
        """The prospects after one round or run; those of a rule that does not weigh costs stay as they are.

        A block that ended up empty once its entropy was seen counts as a refusal: its step earned nothing.
        """
        if plan.worth is None:
            return self
        costs, rounds = plan.worth.costs, verdict.rounds
        share = 1.0 - (1.0 - 1.0 / RATE_ROUNDS) ** rounds
        first = _spent(plan, draft) / costs.rounds[0]
        asked = plan.max_candidates > 0 and not draft.copied
        new = Prospects(
            taken=self.taken,
            refused=self.refused,
            mean=self.mean,
            weight=self.weight,
            tokens=self.tokens + share * (len(verdict.tokens) / rounds - self.tokens),
            work=self.work + share * ((first + rounds - 1) / rounds - self.work),
            idle=self.idle if asked else self.idle + rounds,
            promising=self.promising,
            begun=self.begun,
            foresight=self.foresight.after(plan.foreseen, verdict.tokens),
        )
        if not asked:
            return new
        accepted = [judgement.accepted for judgement in verdict.judgements]
        return new._filed(draft.entropies, accepted)._averaged(accepted or [False])

    def _filed(self, entropies: tuple[float, ...], accepted: list[bool]) -> Prospects:
        taken, refused = self.taken.copy(), self.refused.copy()
        for entropy, stood in zip(entropies, accepted, strict=False):
            node, beyond = entropy_place(entropy)
            (taken if stood else refused)[node : node + 2] += (1.0 - beyond, beyond)
        if float(taken.sum() + refused.sum()) > FULL:
            taken /= 2
            refused /= 2
        return replace(self, taken=taken, refused=refused)

    def _averaged(self, accepted: list[bool]) -> Prospects:
        """The more rounds ago the last candidate, the less is known of the next: off, evidence fades."""
        mean, weight = self.mean, max(LEAST, self.weight * 2.0 ** (-self.idle / HALF_LIFE))
        for stood in accepted:
            weight = min(weight + 1.0, MOST)
            mean += (stood - mean) / weight
        return replace(self, mean=mean, weight=weight, idle=0, promising=accepted[-1], begun=True)

    def anew(self) -> Prospects:
        """For another text, which the drafter has not read."""
        return replace(self, begun=False)

    def pack(self) -> bytes:
        """Little-endian, PROSPECT_BYTES long."""
        flags = self.promising, self.begun
        fixed = _STRUCT.pack(self.mean, self.weight, self.tokens, self.work, self.idle, *flags)
        counts = self.taken.astype("<f4").tobytes() + self.refused.astype("<f4").tobytes()
        return fixed + counts + self.foresight.pack()

    @classmethod
    def unpack(cls, packed: bytes) -> Prospects:
        """The inverse of `pack`; of FORMER_BYTES too."""
        mean, weight, tokens, work, idle, promising, begun = _STRUCT.unpack_from(packed)
        counts = np.frombuffer(packed, dtype="<f4", count=2 * ENTROPY_NODES, offset=_STRUCT.size).astype(np.float32)
        taken, refused = counts[:ENTROPY_NODES], counts[ENTROPY_NODES:]
        foresight = Foresight.unpack(packed[FORMER_BYTES:]) if len(packed) > FORMER_BYTES else Foresight()
        return cls(taken, refused, mean, weight, tokens, work, idle, bool(promising), bool(begun), foresight)


def _spent(plan: DraftPlan, draft: Draft) -> float:
    """Seconds of a plan's first round, as they were weighed."""
    assert plan.worth is not None, "nothing is learned from a plan that weighs nothing"
    costs = plan.worth.costs
    copied = costs.joined_rounds if plan.rounds > 1 else costs.copied_rounds
    return (copied if draft.copied else costs.rounds)[len(draft)]


def _density(counts: _Counts) -> FloatArray:
    """Gaussian kernel, Silverman's bandwidth, at least one node: [ENTROPY_NODES], with the sum 1 away from the ends."""
    n = float(counts.sum())
    if n == 0.0:
        return np.zeros(ENTROPY_NODES)
    mean = float(counts @ _NODES) / n
    variance = float(counts @ np.square(_NODES - mean)) / n
    bandwidth = max(1.0, variance**0.5 * (0.75 * max(n, 1.0)) ** -0.2)
    kernel = np.exp(_SQUARES * (-0.5 / bandwidth**2))
    density: FloatArray = kernel @ counts / (n * bandwidth * (2 * np.pi) ** 0.5)
    return density
