"""How close a decision was: the distance that another logit, or another uniform, would have had to go."""

from __future__ import annotations

import math

import numpy as np
import pytest

from adasd.core.adaptive import AcceptanceState
from adasd.core.context import Context
from adasd.core.draws import CounterDraws, DrawKey, Purpose
from adasd.core.host import HostKernels, HostTarget
from adasd.core.margins import gap, margin
from adasd.core.messages import ContextDelta, VerifyRequest
from adasd.core.rows import sparse_row
from adasd.core.types import Draft, SamplingParams
from adasd.core.verdicts import Verdict
from adasd.core.verification import verification

LOGITS = np.log(np.array([[0.5, 0.3, 0.2], [0.1, 0.2, 0.7]]))
BLOCK = Draft((0,), (1.0,), (sparse_row(np.array([0, 1]), np.array([0.9, 0.1])),))


def request(acceptance: str, temperature: float, seed: int, draft: Draft = BLOCK) -> VerifyRequest:
    context = Context([1, 2])
    told = ContextDelta(bytes(16), context.base, context.base, 0, context.ids, context.hash)
    sampling = SamplingParams(temperature, seed=seed)
    return VerifyRequest(told, sampling, draft, acceptance, AcceptanceState().pack(), 0)


def judged(asked: VerifyRequest, logits: np.ndarray) -> tuple[HostTarget, Verdict]:
    target = HostKernels().target(logits, asked.sampling)
    assert isinstance(target, HostTarget)
    draws, state = CounterDraws(asked.sampling.seed), AcceptanceState()
    rule = verification(asked.acceptance)
    return target, rule.verify(target, asked.draft, state.posterior, asked.context.base, draws)


def test_verdicts_that_agree_have_no_margin() -> None:
    asked = request("exact", 1.0, 1)
    target, verdict = judged(asked, LOGITS)
    assert margin(asked, target, verdict, verdict) is None


def test_a_greedy_decision_is_as_close_as_the_two_largest_logits() -> None:
    asked = request("exact", 0.0, 1)
    target, verdict = judged(asked, LOGITS)
    other = Verdict((1,), 0, "recovered", verdict.judgements)
    assert margin(asked, target, verdict, other) == ("logits", pytest.approx(math.log(0.5 / 0.3)))
    assert gap(np.array([3.0, 9.0, 7.0])) == 2.0


@pytest.mark.parametrize("acceptance", ["exact", "coupled"])
@pytest.mark.parametrize("seed", range(40))
def test_logits_that_are_off_by_less_than_the_margin_change_nothing(acceptance: str, seed: int) -> None:
    """And where a change of this size does change a verdict, the margin says that it was close."""
    asked, step = request(acceptance, 1.0, seed), 0.05
    target, verdict = judged(asked, LOGITS)
    _, other = judged(asked, LOGITS + step * np.array([[1.0, -1.0, 0.0], [0.0, 1.0, -1.0]]))
    found = margin(asked, target, verdict, other)
    if found is not None:
        assert found[1] < 4 * step
        assert found[0] in {"exact": ("acceptance", "emission"), "coupled": ("scores",)}[acceptance]


def test_an_acceptance_is_as_close_as_its_uniform_to_p_over_q() -> None:
    asked = request("exact", 1.0, 5)
    target, _ = judged(asked, LOGITS)
    uniform = CounterDraws(5).uniform(DrawKey(2, 0, Purpose.ACCEPT))
    ratio = 0.5 / (BLOCK.rows[0].weight(0) / BLOCK.rows[0].total)
    accepted, rejected = Verdict((0, 2), 1, "bonus", ()), Verdict((2,), 0, "recovered", ())
    assert margin(asked, target, accepted, rejected) == ("acceptance", pytest.approx(abs(uniform - ratio)))


@pytest.mark.parametrize(("token", "part"), [(0, (0.0, 0.1)), (1, (0.1, 0.3)), (2, (0.3, 1.0))])
def test_an_emission_is_as_close_as_its_uniform_to_the_other_tokens_part(token: int, part: tuple[float, float]) -> None:
    asked = request("exact", 1.0, 5)
    target, _ = judged(asked, LOGITS)
    uniform = CounterDraws(5).uniform(DrawKey(2, 1, Purpose.EMIT))
    left, right = Verdict((0, (token + 1) % 3), 1, "bonus", ()), Verdict((0, token), 1, "bonus", ())
    distance = max(part[0] - uniform, uniform - part[1], 0.0)
    assert margin(asked, target, left, right) == ("emission", pytest.approx(distance))
