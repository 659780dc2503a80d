"""Which candidates to accept: one small class a rule. Every rule sees one candidate's evidence and draws one uniform.

exact            Leviathan et al. 2023 (arXiv 2211.17192), Chen et al. 2023: accept with probability min(1, p/q)
adasd            AdaSD v2 (arXiv 2512.11280), closest to the paper's words: replace, draw, own labels, floor p > 0
adasd-anchored   relax the exact test where P(A | d) >= 1/2, labels from the exact test, guard 0.1
`coupled` is no rule about p and q; see `adasd.core.verification.CoupledVerification`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, Protocol

from adasd.core.density import DISTANCE_ONE, DISTANCE_ZERO, Posterior
from adasd.core.draws import DrawKey, Draws
from adasd.core.types import Evidence
from adasd.core.verdicts import Judgement

Labels = Literal["own", "exact"]
"""Which outcome files a distance under accepted or rejected: the rule's own decision, or the exact test's."""


class AcceptanceRule(Protocol):
    """Judges one candidate at a time; all state comes in as `posterior`."""

    @property
    def labels(self) -> Labels: ...

    def judge(self, evidence: Evidence, posterior: Posterior, key: DrawKey, draws: Draws) -> Judgement: ...


def exact_test(evidence: Evidence, key: DrawKey, draws: Draws) -> bool:
    """Speculative sampling: accept with probability min(1, p/q). evidence.q > 0."""
    return draws.bernoulli(key, min(1.0, evidence.p / evidence.q))


@dataclass(frozen=True, slots=True)
class ExactAcceptance:
    """Lossless: the output follows the target's distribution whatever the draft."""

    labels: Labels = "exact"

    def judge(self, evidence: Evidence, posterior: Posterior, key: DrawKey, draws: Draws) -> Judgement:
        accepted = exact_test(evidence, key, draws)
        return Judgement(evidence.distance, accepted, accepted)


@dataclass(frozen=True, slots=True)
class BayesianAcceptance:
    """P(A | d) from two kernel density estimates of the JS distance, learned while decoding (AdaSD v2, section 4).

    decision: `draw` accepts with probability P(A | d), `map` iff P(A | d) >= 1/2.
    combine: `replace` the exact test once both groups hold `min_samples`, or `relax` it (accept if either accepts).
    guard: a candidate accepted only by relaxation needs p >= guard * max p.
    One uniform a candidate serves both tests.
    """

    combine: Literal["replace", "relax"]
    decision: Literal["draw", "map"]
    labels: Labels
    guard: float = 0.0
    min_samples: int = 5

    def judge(self, evidence: Evidence, posterior: Posterior, key: DrawKey, draws: Draws) -> Judgement:
        exact = exact_test(evidence, key, draws)
        wanted = self._combined(exact, self._believed(exact, evidence.distance, posterior, key, draws), evidence)
        accepted = wanted and evidence.p > 0.0  # the floor: bans, masks and top-p stay enforced
        loss = math.log(evidence.q / evidence.p) if accepted and not exact else 0.0
        return Judgement(evidence.distance, exact, accepted, loss, floored=wanted and not accepted)

    def _believed(self, exact: bool, distance: float, posterior: Posterior, key: DrawKey, draws: Draws) -> bool:
        if distance < DISTANCE_ZERO or distance > DISTANCE_ONE:
            return distance < DISTANCE_ZERO  # absolute agreement and disagreement need no estimate
        if not posterior.ready(self.min_samples):
            return exact
        probability = posterior.accepted(distance)
        if probability is None:  # both densities vanish here
            return exact
        return draws.bernoulli(key, probability) if self.decision == "draw" else probability >= 0.5

    def _combined(self, exact: bool, believed: bool, evidence: Evidence) -> bool:
        if self.combine == "replace":
            return believed
        return exact or (believed and evidence.p >= self.guard * evidence.p_max)


EXACT = ExactAcceptance()
ADASD = BayesianAcceptance(combine="replace", decision="draw", labels="own")
ADASD_ANCHORED = BayesianAcceptance(combine="relax", decision="map", labels="exact", guard=0.1)
