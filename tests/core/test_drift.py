"""The literal reading of AdaSD drifts, the anchored one does not: simulated sessions on synthetic pairs, fixed seeds.

Labelled by its own decisions the estimate has nothing that pulls it back (a Polya urn): sessions on the same pair end
anywhere. Labelled by the exact test on the same draw it estimates something real.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from adasd.core.acceptance import ADASD, ADASD_ANCHORED, BayesianAcceptance
from adasd.core.adaptive import AcceptanceState
from adasd.core.divergence import js_distance, js_divergence
from adasd.core.draws import CounterDraws, DrawKey, Purpose
from adasd.core.sampling import softmax
from adasd.core.types import Draft, Evidence
from adasd.core.verdicts import Verdict

TOKENS = 64
JUDGED = 700
SESSIONS = 14


def candidate(rng: np.random.Generator, noise: float) -> Evidence:
    """One position of a synthetic pair: the draft's logits are the target's plus noise."""
    logits = rng.normal(0.0, 2.5, TOKENS)
    p, q = softmax(logits), softmax(logits + rng.normal(0.0, noise, TOKENS))
    x = int(rng.choice(TOKENS, p=q))
    return Evidence(float(p[x]), float(q[x]), float(p.max()), js_distance(js_divergence(p, q)))


def late_acceptance(rule: BayesianAcceptance, session: int, noise: float) -> float:
    """Share of candidates accepted in the second half of a session."""
    rng, draws, state = np.random.default_rng([session, 7]), CounterDraws(session), AcceptanceState()
    accepted = []
    for i in range(JUDGED):
        judgement = rule.judge(candidate(rng, noise), state.posterior, DrawKey(i, 0, Purpose.ACCEPT), draws)
        verdict = Verdict((), int(judgement.accepted), "none", (judgement,))
        state = state.after(Draft((0,), (1.0,), ()), verdict, rule.labels)
        accepted.append(judgement.accepted)
    return float(np.mean(accepted[JUDGED // 2 :]))


@cache
def sessions(rule: BayesianAcceptance, noise: float) -> np.ndarray:
    return np.array([late_acceptance(rule, session, noise) for session in range(SESSIONS)])


@pytest.mark.parametrize("noise", [1.2], ids=["weak pair"])
def test_own_labels_drift_three_times_as_far_as_labels_of_the_exact_test(noise: float) -> None:
    own = sessions(ADASD, noise)
    anchored = sessions(replace(ADASD, labels="exact"), noise)
    assert own.std(ddof=1) >= 3 * anchored.std(ddof=1)


def test_the_anchored_preset_never_accepts_less_than_exact_and_does_not_drift() -> None:
    rng, draws, state = np.random.default_rng(1), CounterDraws(1), AcceptanceState()
    for i in range(300):
        judgement = ADASD_ANCHORED.judge(candidate(rng, 1.2), state.posterior, DrawKey(i, 0, Purpose.ACCEPT), draws)
        assert judgement.accepted or not judgement.exact
        state = state.after(Draft((0,), (1.0,), ()), Verdict((), 0, "none", (judgement,)), ADASD_ANCHORED.labels)
    assert sessions(ADASD_ANCHORED, 1.2).std(ddof=1) < 0.04
