"""Cost profiles as stated and as measured."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from adasd.core.averages import Average
from adasd.core.costs import NOMINAL, CostProfile, isotonic, paced, stated_profile
from adasd.core.errors import InvalidRequest
from adasd.core.marginal import weighed
from adasd.core.metering import CostMeter, Observation, grouped

STATED: dict[str, Any] = {"version": "a100", "fixed": 0.5, "draft": 0.1, "verify": [1, 1.5], "commit": 0.25}


def test_the_cost_of_a_round() -> None:
    profile = stated_profile(STATED)
    assert profile.rounds[0] == 1.25  # plain decoding: no drafter, one row
    assert profile.rounds[1:4] == pytest.approx(
        (0.5 + 0.1 + 1.5 + 0.25, 0.5 + 0.2 + 2.0 + 0.25, 0.5 + 0.3 + 2.5 + 0.25)
    )
    assert stated_profile({k: v for k, v in STATED.items() if k != "commit"}).commit == 0.0


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"version": "a 1"}, "version"),
        ({"version": 1}, "version"),
        ({"fixed": -1}, "fixed"),
        ({"draft": "fast"}, "draft"),
        ({"draft": True}, "draft"),
        ({"commit": float("nan")}, "commit"),
        ({"verify": []}, "verify"),
        ({"verify": [0, 1]}, "verify"),
        ({"verify": [2, 1]}, "verify"),
        ({"verify": [1] * 66}, "verify"),
        ({"verify": 1}, "verify"),
        ({"speed": 1}, "speed"),
    ],
)
def test_a_profile_that_makes_no_sense_is_refused_by_name(change: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        stated_profile(STATED | change)
    assert raised.value.param == param


def test_a_missing_figure_is_named() -> None:
    with pytest.raises(InvalidRequest, match="draft of a cost profile is missing"):
        stated_profile({k: v for k, v in STATED.items() if k != "draft"})


def test_a_lone_outlier_does_not_move_an_average() -> None:
    average = Average()
    for value in (9.0, 1.0, 1.0, 1.0, 50.0, 1.0, 1.0):
        average = average.add(value, 64)
    assert average.value == 1.0


def measured(meter: CostMeter, *rounds: tuple[int, float], times: int = 1) -> CostMeter:
    """After rounds of so many candidates and seconds of verification."""
    for _ in range(times):
        for candidates, verify in rounds:
            meter = meter.after(Observation(candidates, verify, 0.01))
    return meter


def test_a_meter_starts_from_its_prior_and_takes_an_unseen_drafter_for_free() -> None:
    profile = CostMeter().profile()
    assert profile.passes == pytest.approx(NOMINAL.passes)
    assert (profile.fixed, profile.draft, profile.commit) == (0.0, 0.0, NOMINAL.commit)


def test_a_meter_learns_the_steps_of_the_verify_table() -> None:
    verify = measured(CostMeter(), (0, 1.0), (3, 1.0), (4, 2.0), (7, 2.0), times=64).profile().verify
    assert verify[:4] == pytest.approx([1.0] * 4, rel=0.01)
    assert verify[4:8] == pytest.approx([2.0] * 4, rel=0.01)
    assert 2.0 < verify[8] < 2.1


def test_load_seen_at_one_row_moves_the_whole_table() -> None:
    idle = measured(CostMeter(), (0, 1.0), (4, 2.0), times=64)
    verify = measured(idle, (0, 3.0), times=200).profile().verify
    assert verify[0] == pytest.approx(3.0, rel=0.05)
    assert verify[4] > 4.5


def test_time_beside_the_drafters_own_is_the_price_of_asking() -> None:
    meter = CostMeter().after(Observation(3, 1.0, 0.01, drafting=0.7, work=0.4, steps=4))
    assert meter.profile().draft == pytest.approx(0.1)
    assert meter.profile().fixed == pytest.approx(0.3)
    catching_up = meter.after(Observation(1, 1.0, 0.01, drafting=5.3, work=5.0)).profile()
    assert catching_up.draft == pytest.approx(0.1)
    assert catching_up.fixed == pytest.approx(0.3)


def test_costs_never_fall_with_the_rows() -> None:
    assert isotonic([1.0, 3.0, 2.0, 4.0], [1, 1, 3, 1]) == [1.0, 2.25, 2.25, 4.0]
    verify = measured(CostMeter(), (5, 1.0), (2, 3.0), (0, 2.0), times=5).profile().verify
    assert list(verify) == sorted(verify)
    assert isinstance(CostMeter().profile(), CostProfile)


def test_a_block_costs_what_it_does_if_all_in_its_pass_draft_alike() -> None:
    """Eight sessions share a pass of 1 s at eight rows, 2 s at sixteen: one more row each doubles it."""
    meter = CostMeter()
    for candidates, seconds in ((0, 1.0), (1, 2.0)) * 64:
        for _ in range(8):
            meter = meter.after(Observation(candidates, seconds, 0.01, sessions=8.0, rows=8 * (candidates + 1)))
    assert meter.profile().verify[:2] == pytest.approx((1.0, 2.0), rel=0.05)
    alone = meter
    for _ in range(32):
        alone = alone.after(Observation(0, 0.5, 0.01, sessions=1.0, rows=1))
    assert alone.profile().verify[0] == pytest.approx(0.5, rel=0.05)
    assert alone.profile().verify[1] < 0.6


def test_blocks_that_come_apart_wait_for_one_anothers_passes() -> None:
    """Eight sessions take turns. Plain ones keep step, 1 s for eight; drafting ones come two at a pass, 0.5 s for four
    rows: a round of theirs is four of those. As soon as all draft in one pass, it is that pass."""

    def after(meter: CostMeter, together: float, seconds: float) -> CostMeter:
        for _ in range(300):
            meter = meter.after(Observation(0, 1.0, 0.0, sessions=8.0, rows=8, running=8.0))
            apart = {"sessions": together, "rows": round(2 * together), "running": 8.0}
            meter = meter.after(Observation(1, seconds, 0.0, 0.1, 0.1, 1, **apart))
        return meter

    apart = after(CostMeter(), 2.0, 0.5).profile()
    assert apart.verify[0] == pytest.approx(1.0, rel=0.05)
    assert apart.verify[1] == pytest.approx(2.0, rel=0.05)
    meter = after(CostMeter(), 2.0, 0.5)
    for _ in range(40):
        meter = meter.after(Observation(1, 0.5, 0.0, 0.1, 0.1, 1, sessions=2.0, rows=4, running=8.0, way=0.05))
    dearer = meter.profile()
    assert dearer.verify[1] == pytest.approx(2.0 + 4 * 0.05, rel=0.05), "so do their messages, for the cores"
    in_step = after(CostMeter(), 8.0, 1.2).profile()
    assert in_step.verify[:2] == pytest.approx((1.0, 1.2), rel=0.05)


def test_what_lies_beside_the_passes_is_no_pass() -> None:
    """Messages that take 0.5 s make a plain round no dearer that has none of it, and one with candidates by as much.
    Where plain rounds have it too, it is theirs as well."""
    for plain in (None, 0.125):
        meter = CostMeter(paced([0.25, 0.25, 0.25, 0.375], [0.03]), paced=True)
        for _ in range(40):
            meter = meter.after(Observation(0, 0.25, 0.0, way=plain))
            meter = meter.after(Observation(3, 0.25, 0.0, 0.09, 0.09, 3, way=0.5))
        costs = meter.profile()
        first = 0.25 + (plain or 0.0)
        assert costs.rounds[0] == pytest.approx(first, abs=1e-3)
        assert costs.rounds[3] == pytest.approx(0.25 + 0.5 + 0.09, rel=0.01)
        assert costs.copied_rounds[3] == pytest.approx(0.25 + 0.5, rel=0.01)


def test_busy_cores_make_no_long_block_worth_its_time() -> None:
    """Sixteen sessions draft, and every message takes three passes' time. Those that begin then, hopefully, draft none:
    what holds up few rows as much as many does not make many cheap."""
    passes = [0.03, 0.03, 0.03, 0.05, 0.07, 0.14, 0.28]
    meter = CostMeter(paced(passes, [0.0025, 0.003, 0.0035, 0.005, 0.008, 0.014, 0.027]), paced=True)
    for number in range(400):
        together = 2 + number % 11
        rows, took = 4 * together, 4.5e-3 * 4 * together
        shared = {"sessions": float(together), "rows": rows, "running": 16.0, "served": 8.0}
        meter = meter.after(Observation(3, max(0.05, took), 0.0, 0.03, 0.018, 3, way=0.2, **shared))
    costs = meter.profile(known=16)
    assert costs.rounds[0] < 0.1
    assert not weighed(0.8, 1.0, costs, 20).pays


def test_rows_are_grouped_eight_an_octave() -> None:
    assert [grouped(rows) for rows in (1, 16, 17, 18, 19, 33, 36, 1000)] == [1, 16, 18, 18, 20, 36, 36, 1024]


def test_measured_passes_are_a_table_that_never_falls() -> None:
    profile = paced([1.0, 1.2, 1.1, 2.0], [0.3])
    assert profile.verify == pytest.approx((1.0, 1.15, 1.15, 1.15, 1.3625, 1.575, 1.7875, 2.0))
    assert (profile.draft, profile.commit) == (0.3, NOMINAL.commit)
    assert len(paced([1.0] * 8, [0.3]).verify) == 65


def test_where_passes_were_measured_nothing_is_thought_cheap() -> None:
    """Sixteen plain rows of 3 s where 2 s were measured: it is busier, and twenty rows will cost what they are then."""
    told = paced([0.5, 0.5, 0.75, 1.0, 2.0, 4.0], [0.1])
    guessed, known = (measured(meter, (15, 3.0), times=40) for meter in (CostMeter(), CostMeter(told, paced=True)))
    rows = np.array([4, 16, 20, 32])
    assert known._passes(rows) == pytest.approx([1.125, 3.0, 3.75, 6.0], rel=0.01)
    assert guessed._passes(rows)[2:].max() < 4.0
    once = measured(known, (31, 9.0))
    assert once._passes(rows)[2:] == pytest.approx([3.75, 9.0], rel=0.01)
    assert measured(once, (31, 3.2), times=300)._passes(rows)[2] == pytest.approx(3.2, rel=0.05), (
        "no more than more rows"
    )
    assert CostMeter(told, paced=True).profile().draft == 0.1
