"""The marginal rule against the optimum, on a virtual clock; what it learns, and what it forgets."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from adasd.core.adaptive import AcceptanceState
from adasd.core.costs import CostProfile
from adasd.core.marginal import Marginal
from adasd.core.metering import CostMeter
from adasd.core.outlook import Outlook
from adasd.core.prospects import MOST, PROBE_ROUNDS, Prospects
from adasd.core.types import Draft, DraftPlan
from adasd.core.verdicts import Judgement, Verdict
from adasd.core.worth import ENTROPY_NODES, Worth
from tests.core.virtual_clock import Clocked, best_fixed, constant, foretold

W = 20
ROUNDS = 1200
STOOD, FELL = Judgement(0.5, exact=True, accepted=True), Judgement(0.5, exact=False, accepted=False)


def costs(draft: float, fixed: float = 0.0, rise: float = 0.0, step: int = 1) -> CostProfile:
    """verify is 1 for one row and rises by `rise` every `step` rows."""
    return CostProfile("tests", fixed, draft, tuple(1.0 + rise * (row // step) for row in range(W + 1)), 0.01)


SETTINGS = [
    (0.3, costs(0.02)),
    (0.3, costs(0.25, rise=0.03)),
    (0.6, costs(0.1, rise=0.03)),
    (0.6, costs(0.05, fixed=0.3, rise=0.4, step=4)),
    (0.85, costs(0.02)),
    (0.85, costs(0.25, rise=0.03)),
    (0.85, costs(0.02, fixed=0.5)),
    (0.4, costs(0.1, fixed=0.5, rise=0.5, step=8)),
]


@pytest.mark.parametrize(("a", "real"), SETTINGS, ids=str)
@pytest.mark.parametrize("start", ["off", "W"])
def test_at_least_97_percent_of_the_optimum_from_off_and_from_w(a: float, real: CostProfile, start: str) -> None:
    clock, rule = Clocked(constant(0.0 if start == "off" else 1.0), real), Marginal(W, lambda: real)
    clock.run(rule, 300 if start == "off" else 100)
    assert clock.share("draft", 20) == (start == "W")
    clock.acceptance = constant(a)
    assert clock.run(rule, ROUNDS) >= 0.97 * best_fixed(a, real, W)


@pytest.mark.parametrize(("a", "real"), SETTINGS[3:6], ids=str)
def test_costs_are_found_out_on_the_way(a: float, real: CostProfile) -> None:
    clock = Clocked(constant(a), real, meter=CostMeter())
    assert clock.run(Marginal(W, clock.profile), ROUNDS) >= 0.97 * best_fixed(a, real, W)


def test_under_load_it_goes_to_zero_candidates_and_comes_back() -> None:
    idle, loaded = costs(0.1, fixed=0.1, rise=0.03), costs(0.4, fixed=3.0, rise=0.5)
    clock = Clocked(constant(0.7), idle, meter=CostMeter())
    rule = Marginal(W, clock.profile)
    rates = []
    for real in (idle, loaded, idle):
        clock.costs = real
        clock.run(rule, 600)
        rates.append(clock.run(rule, 600) / best_fixed(0.7, real, W))
        assert clock.share("off" if real is loaded else "draft", 600) > 0.95
    assert min(rates) >= 0.97, rates
    assert best_fixed(0.7, loaded, W) == 1.0 / loaded.rounds[0]


def test_entropy_that_foretells_acceptance_is_used() -> None:
    """Better than any fixed length, since the lengths follow the text."""
    real = costs(0.05, rise=0.1)
    clock = Clocked(foretold(0.1, 0.98), real)
    rate = clock.run(Marginal(W, lambda: real), ROUNDS)
    assert rate > 1.05 * best_fixed(0.54, real, W)  # the mean of both kinds: lengths that do not look
    worth = clock.plans[-1].worth
    assert worth is not None
    assert worth.accepted(0.2) > 0.75 > 0.5 > worth.accepted(3.0)


def test_a_session_handed_over_at_any_round_goes_on_alike() -> None:
    real = costs(0.1, fixed=0.3, rise=0.1)
    rule = Marginal(W, lambda: real)
    kept, moved = (Clocked(foretold(0.2, 0.8), real) for _ in range(2))
    for _ in range(200):
        kept.run(rule, 1)
        moved.run(rule, 1)
        moved.state = replace(moved.state, acceptance=AcceptanceState.unpack(moved.state.acceptance.pack()))
        assert kept.plans[-1] == moved.plans[-1]
    assert {plan.decision for plan in kept.plans} == {"off", "probe", "draft"}


def worth(mean: float, rate: float, real: CostProfile) -> Worth:
    return Worth((mean,) * ENTROPY_NODES, mean, rate, real)


def test_the_look_ahead_gets_over_a_fixed_cost_and_over_steps() -> None:
    trap = worth(0.85, 1.0, costs(0.02, fixed=0.5))
    assert not trap.goes_on(0, 0.5, 1)
    assert trap.goes_on(0, 0.5, 3)
    stairs = worth(0.9, 1.0, CostProfile("tests", 0.0, 0.05, (1.0, 2.0, 2.0, 2.0)))
    assert not stairs.goes_on(0, 1.0, 1)
    assert stairs.goes_on(0, 1.0, 2)


def test_time_that_is_spent_counts_for_nothing() -> None:
    dear = worth(0.5, 1.0, CostProfile("tests", 5.0, 5.0, (1.0, 1.1, 1.2)))
    assert not dear.goes_on(0, 1.0, 2)
    assert dear.takes(0, 0.2, 2)
    assert not dear.takes(0, 0.05, 2)
    assert dear.takes(1, 0.2, 2)


def test_a_plan_cut_short_is_weighed_again() -> None:
    plan = DraftPlan(W, worth=worth(0.85, 1.0, costs(0.02, fixed=1.0)))
    assert plan.limited(W).max_candidates == W
    assert plan.limited(1).decision == "off"


def block(*judgements: Judgement) -> tuple[Draft, Verdict]:
    accepted = sum(judgement.accepted for judgement in judgements)
    n = len(judgements)
    return Draft((7,) * n, (1.0,) * n, ()), Verdict((7,) * (accepted + 1), accepted, "bonus", judgements)


def learned(prospects: Prospects, plan: DraftPlan, *judgements: Judgement) -> Prospects:
    return prospects.after(plan, *block(*judgements))


PAID = DraftPlan(4, worth=worth(0.5, 1.0, costs(0.25)))
OFF = replace(PAID, max_candidates=0)


def test_probes_are_rare_where_they_are_dear_and_repeated_where_they_go_well() -> None:
    prospects = learned(Prospects(), PAID, FELL)
    for _ in range(PROBE_ROUNDS // 2):
        assert not prospects.probe_due(loss=0.5)
        prospects = learned(prospects, OFF)
    assert prospects.probe_due(loss=0.5)
    assert not prospects.probe_due(loss=0.6)
    well = learned(Prospects(), PAID, STOOD)
    for lucky in (well, Prospects()):
        assert lucky.probe_due(loss=0.5)
        assert not lucky.probe_due(loss=0.6)


def test_what_was_known_fades_while_off() -> None:
    sure = Prospects(mean=0.05, weight=MOST, idle=0)
    on = learned(sure, PAID, STOOD)
    off = learned(replace(sure, idle=PROBE_ROUNDS), PAID, STOOD)
    assert on.mean < 0.07
    assert off.mean > 0.2


def test_a_step_that_was_taken_for_nothing_counts_as_a_refusal() -> None:
    assert learned(Prospects(), PAID).mean < Prospects().mean
    assert learned(Prospects(), PAID).refused.sum() == 0
    assert learned(Prospects(), OFF).mean == Prospects().mean


def test_other_rules_leave_no_prospects() -> None:
    prospects = Prospects()
    assert learned(prospects, DraftPlan(4), STOOD) is prospects


def test_few_samples_say_little_about_entropy() -> None:
    state = AcceptanceState()
    draft = Draft((7, 7), (0.1, 5.0), ())
    one = state.after(draft, Verdict((7, 7), 1, "recovered", (STOOD, FELL)), "exact", PAID).prospects
    many = one
    for _ in range(200):
        many = many.after(PAID, draft, Verdict((7, 7), 1, "recovered", (STOOD, FELL)))
    spreads = [np.ptp(prospects.acceptance()) for prospects in (one, many)]
    assert spreads[0] < 0.5
    assert spreads[1] > 0.95
    assert len(many.pack()) == len(Prospects().pack())


def test_what_has_to_be_read_first_must_be_earned_back() -> None:
    """A text of 200 ids at 0.05 s each: 10 tokens, at a gain of two or so a round."""
    state = AcceptanceState(prospects=Prospects(mean=0.8, weight=MOST))
    rule = Marginal(W, lambda: replace(costs(0.02), reading=0.05))
    gain = rule.worth(state.prospects).gain(W)
    entry = rule.worth(state.prospects).rate * 200 * 0.05
    assert 1.0 < gain < entry
    enough = math.ceil(entry / gain)
    assert rule.plan(state, Outlook(200, 0, enough)).decision == "draft"
    assert rule.plan(state, Outlook(200, 0, enough - 1)).decision == "off"
    begun = replace(state, prospects=replace(state.prospects, begun=True))
    assert rule.plan(begun, Outlook(200, 0, 1)).decision == "draft", "it is paid once"
    assert rule.plan(begun.anew(), Outlook(200, 0, 1)).decision == "off", "for every text"


def test_a_text_that_has_gone_on_for_long_is_thought_to_go_on() -> None:
    state = AcceptanceState(prospects=Prospects(mean=0.8, weight=MOST))
    rule = Marginal(W, lambda: replace(costs(0.02), reading=0.05))
    decisions = [rule.plan(state, Outlook(4000 + n, n)).decision for n in (0, 100, 1000)]
    assert decisions[0] == "off"
    assert decisions[-1] == "draft"


def test_a_probe_pays_for_what_it_has_to_read() -> None:
    """It comes after as many more rounds as that loses tokens, whoever waits for it."""
    poor = Prospects(mean=0.05, weight=MOST)
    costs_here = costs(0.5)

    def first_probe(reading: float) -> int:
        rule = Marginal(W, lambda: replace(costs_here, reading=reading))
        plans = (rule.plan(AcceptanceState(prospects=replace(poor, idle=n)), Outlook(100)) for n in range(10_000))
        return next(n for n, plan in enumerate(plans) if plan.decision != "off")

    free, read = first_probe(0.0), first_probe(0.01)
    rate = Marginal(W, lambda: costs_here).worth(poor).rate
    assert read - free == pytest.approx(PROBE_ROUNDS * rate * 100 * 0.01, abs=2)


def test_the_drafter_is_as_far_behind_as_rounds_went_by() -> None:
    prospects = replace(Prospects(), idle=10, tokens=1.5)
    assert prospects.unread(100) == 100
    assert replace(prospects, begun=True).unread(100) == 15
    assert replace(prospects, begun=True).unread(7) == 7
    assert learned(Prospects(), PAID, STOOD).begun
    assert not learned(Prospects(), OFF).begun
    for known in (prospects, replace(prospects, begun=True)):
        assert Prospects.unpack(known.pack()).begun == known.begun
