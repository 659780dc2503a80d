"""The acceptance rules one candidate at a time."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from adasd.core.acceptance import ADASD, ADASD_ANCHORED, EXACT, AcceptanceRule
from adasd.core.density import Posterior
from adasd.core.draws import DrawKey, Purpose
from adasd.core.errors import InvalidRequest
from adasd.core.types import Evidence, FloatArray, IntArray
from adasd.core.verification import verification

KEY = DrawKey(1, 0, Purpose.ACCEPT)
LEARNED = Posterior().add([0.1, 0.15, 0.2, 0.25, 0.3], [0.7, 0.75, 0.8, 0.85, 0.9])


class Uniform:
    """Draws whose every uniform is the given number."""

    def __init__(self, value: float) -> None:
        self.value = value

    def bernoulli(self, key: DrawKey, probability: float) -> bool:
        return self.value < probability

    def categorical(self, key: DrawKey, weights: FloatArray | IntArray) -> int:
        raise AssertionError

    def gumbel(self, position: int, ids: IntArray) -> FloatArray:
        raise AssertionError


def accepts(rule: AcceptanceRule, evidence: Evidence, uniform: float, posterior: Posterior = LEARNED) -> bool:
    return rule.judge(evidence, posterior, KEY, Uniform(uniform)).accepted


def test_exact_accepts_with_probability_p_over_q() -> None:
    evidence = Evidence(p=0.2, q=0.4, p_max=0.5, distance=0.9)
    assert accepts(EXACT, evidence, 0.49)
    assert not accepts(EXACT, evidence, 0.51)
    assert accepts(EXACT, Evidence(0.4, 0.2, 0.5, 0.9), 0.999)


@pytest.mark.parametrize("rule", [ADASD, ADASD_ANCHORED])
def test_before_both_groups_have_samples_the_exact_test_decides(rule: AcceptanceRule) -> None:
    few = Posterior().add([0.1] * 4, [0.9] * 5)
    evidence = Evidence(0.2, 0.4, 0.4, 0.1)
    assert accepts(rule, evidence, 0.49, few)
    assert not accepts(rule, evidence, 0.51, few)


def test_adasd_replaces_the_exact_test() -> None:
    close, far = Evidence(0.01, 0.4, 0.9, 0.15), Evidence(0.4, 0.2, 0.4, 0.85)
    assert accepts(ADASD, close, 0.9)
    assert not accepts(ADASD, far, 0.1)
    assert LEARNED.accepted(0.15) == pytest.approx(1.0, abs=1e-3)


def test_anchored_only_relaxes_and_has_a_guard() -> None:
    assert accepts(ADASD_ANCHORED, Evidence(0.4, 0.2, 0.4, 0.85), 0.9)
    assert accepts(ADASD_ANCHORED, Evidence(0.1, 0.4, 0.9, 0.15), 0.9)
    assert not accepts(ADASD_ANCHORED, Evidence(0.08, 0.4, 0.9, 0.15), 0.9)
    assert not accepts(ADASD_ANCHORED, Evidence(0.1, 0.4, 0.4, 0.85), 0.9)


@pytest.mark.parametrize(("distance", "expected"), [(0.0, True), (9e-4, True), (1.0, False)])
def test_absolute_agreement_and_disagreement(distance: float, expected: bool) -> None:
    assert accepts(ADASD, Evidence(0.3, 0.4, 0.4, distance), 0.9, Posterior()) is expected


@pytest.mark.parametrize("rule", [ADASD, replace(ADASD_ANCHORED, guard=0.0)])
def test_nothing_of_target_probability_zero_is_accepted_and_it_is_counted(rule: AcceptanceRule) -> None:
    judgement = rule.judge(Evidence(0.0, 0.4, 0.9, 0.15), LEARNED, KEY, Uniform(0.01))
    assert not judgement.accepted
    assert judgement.floored
    assert judgement.loss == 0.0


def test_what_relaxation_costs() -> None:
    judgement = ADASD_ANCHORED.judge(Evidence(0.1, 0.4, 0.5, 0.15), LEARNED, KEY, Uniform(0.9))
    assert judgement.relaxed
    assert judgement.loss == pytest.approx(math.log(4))
    assert ADASD_ANCHORED.judge(Evidence(0.1, 0.4, 0.5, 0.15), LEARNED, KEY, Uniform(0.1)).loss == 0.0


def test_an_unknown_rule_is_refused_with_the_list() -> None:
    with pytest.raises(InvalidRequest, match="exact, adasd, adasd-anchored, coupled"):
        verification("typical")


def test_the_presets_differ_in_what_files_a_distance() -> None:
    """The paper's rule learns from its own decisions, the anchored one from the exact test."""
    assert [verification(name).labels for name in ("adasd", "adasd-anchored")] == ["own", "exact"]
