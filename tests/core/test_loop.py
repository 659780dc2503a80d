"""Stopping rules, the drafting loop, the controller and the boundary."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest

from adasd.core.adaptive import AcceptanceState, Mean
from adasd.core.backend import Proposal
from adasd.core.context import Context
from adasd.core.decoding import Controller, TokenBoundary, cut_block
from adasd.core.drafting import draft_block
from adasd.core.draws import CounterDraws
from adasd.core.errors import InvalidRequest
from adasd.core.host import HostKernels, HostTarget
from adasd.core.marginal import Marginal
from adasd.core.progress import Counters, GenerationState
from adasd.core.rows import PointRow, dense_row
from adasd.core.stopping import AdaSDStopping, Fixed, Off, stopping_rule
from adasd.core.types import Draft, DraftPlan, SamplingParams
from adasd.core.verdicts import Judgement, Verdict
from adasd.core.verification import CoupledVerification, verification

ENTROPIES = [0.5, 1.5, 0.2, 3.0, 0.1, 0.1]


def block(plan: DraftPlan, tokens: Sequence[int] = (3, 4, 5, 6, 7, 8), eos_ids: Sequence[int] = ()) -> Draft:
    def propose(candidates: Sequence[int]) -> Proposal:
        i = len(candidates)
        return Proposal(ENTROPIES[i], PointRow(tokens[i]) if tokens[i] >= 0 else None)

    return draft_block(propose, plan, 1, CounterDraws(0), eos_ids)


def test_the_candidate_that_trips_the_threshold_is_sent() -> None:
    assert block(DraftPlan(6, 1.0)).ids == (3, 4)
    assert block(DraftPlan(6, 1.5)).ids == (3, 4, 5, 6)
    assert block(DraftPlan(6)).ids == (3, 4, 5, 6, 7, 8)


def test_bounds_eos_and_empty_rows_end_a_block() -> None:
    assert block(DraftPlan(0)).ids == ()
    assert block(DraftPlan(2)).ids == (3, 4)
    assert block(DraftPlan(6), eos_ids=[5]).ids == (3, 4, 5)
    assert block(DraftPlan(6), tokens=(3, -1)).ids == (3,)
    assert draft_block(lambda _: None, DraftPlan(6), 1, CounterDraws(0), ()).ids == ()


def test_the_adasd_threshold_is_the_mean_of_rejected_entropies() -> None:
    assert AdaSDStopping().plan(AcceptanceState()) == DraftPlan(20, math.inf)
    state = AcceptanceState(rejected_entropy=Mean().add(1.0).add(2.0))
    assert AdaSDStopping(7).plan(state) == DraftPlan(7, 1.5)
    assert Fixed(5).plan(state) == DraftPlan(5)
    assert Off().plan(state) == DraftPlan(0)


def test_rules_by_name() -> None:
    assert stopping_rule("fixed", None) == Fixed(5)
    assert stopping_rule("fixed", 3) == Fixed(3)
    assert stopping_rule("adasd", None) == AdaSDStopping(20)
    assert stopping_rule("off", None) == Off()
    assert stopping_rule("marginal", 7) == Marginal(7)
    for name, count in (("off", 3), ("svip", None), ("adasd", 0), ("fixed", -1)):
        with pytest.raises(InvalidRequest):
            stopping_rule(name, count)


def test_the_controller_never_drafts_past_the_limit_and_starts_without_candidates() -> None:
    controller = Controller(Fixed(5), verification("exact"), limit=20)
    running = GenerationState(counters=Counters(rounds=1))
    assert controller.plan(GenerationState(), Context(range(10))).max_candidates == 0
    planned = [controller.plan(running, Context(range(base))).max_candidates for base in (10, 14, 15, 18, 19)]
    assert planned == [5, 5, 4, 1, 0]
    assert Controller(Fixed(5), verification("coupled"), 20).plan(running, Context(range(10))).coupled


@pytest.mark.parametrize(
    ("tokens", "length", "finish"),
    [
        ([5, 6], 2, None),
        ([5, 0, 6], 2, "stop"),
        ([5, 6, 7, 8], 3, "length"),
        ([5, 6, 0, 8], 3, "stop"),
        ([5, 6, 7, 0], 3, "length"),
        ([0], 1, "stop"),
    ],
)
def test_earliest_boundary_wins(tokens: list[int], length: int, finish: str | None) -> None:
    assert TokenBoundary({0}, 3).cut(tokens) == (length, finish)


def test_what_lies_past_a_boundary_was_neither_drafted_nor_accepted() -> None:
    draft = Draft((5, 6, 7), (1.0, 1.0, 1.0), (PointRow(5), PointRow(6), PointRow(7)))
    judged = (Judgement(0.0, exact=True, accepted=True),) * 3
    verdict = Verdict((5, 6, 7, 9), 3, "bonus", judged)
    short, cut = cut_block(draft, verdict, 2)
    assert (short.ids, cut.tokens, cut.accepted, cut.emission, len(cut.judgements)) == ((5, 6), (5, 6), 2, "none", 2)
    assert cut_block(draft, verdict, 4) == (draft, verdict)
    rejected = Verdict((5, 9), 1, "recovered", judged[:2])
    assert cut_block(draft, rejected, 2) == (draft, rejected)


def rows(seed: int, count: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 1.5, (count, 8))


@pytest.mark.parametrize("seed", range(20))
def test_coupled_text_does_not_depend_on_the_draft(seed: int) -> None:
    """Every token is argmax(log p + g) of its own position, whatever was drafted before it."""
    sampling, draws, base = SamplingParams(seed=seed), CounterDraws(seed), 7
    target = HostKernels().target(rows(1, 4), sampling)
    expected = target.coupled(base, draws)
    for draft_seed in (1, 2):
        logits = rows(draft_seed, 4)

        def propose(candidates: Sequence[int], logits: np.ndarray = logits) -> Proposal:
            return HostKernels().propose(logits[len(candidates)], sampling)

        draft = draft_block(propose, DraftPlan(3, coupled=True), base, draws, ())
        verdict = CoupledVerification().verify(target, draft, AcceptanceState().posterior, base, draws)
        assert list(verdict.tokens) == list(expected[: len(verdict.tokens)])
        if draft_seed == 1:  # the twin's candidates all stand, up to rounding of its rows
            assert verdict.accepted == 3


def test_coupled_samples_follow_the_target() -> None:
    p = np.array([0.5, 0.3, 0.2, 0.0])
    counts = np.zeros(4)
    for seed in range(4000):
        counts[HostTarget(p[None], p[None]).coupled(1, CounterDraws(seed))[0]] += 1
    assert counts[3] == 0
    assert ((counts[:3] - 4000 * p[:3]) ** 2 / (4000 * p[:3])).sum() < 13.8  # chi-square, 2 degrees, p = 0.001


def test_a_block_judged_at_its_first_rejection_emits_from_the_residual() -> None:
    p = np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    draft = Draft((2,), (1.0,), (dense_row(np.array([0.5, 0.0, 0.5])),))
    verdict = verification("exact").verify(HostTarget(p, p), draft, AcceptanceState().posterior, 1, CounterDraws(0))
    assert (verdict.tokens, verdict.accepted, verdict.emission) == ((0,), 0, "recovered")
