"""What sessions begin with once others have drafted: their level and how they differ, and one probe for all."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from adasd.core.costs import CostProfile
from adasd.core.experience import Experience
from adasd.core.marginal import Marginal
from adasd.core.progress import GenerationState
from adasd.core.prospects import PROBE_ROUNDS, Prospects
from tests.core.virtual_clock import Clocked, constant

HARD = CostProfile("hard", 0.3, 0.3, (1.0, 1.1), 0.0)
"""Where a candidate pays from an acceptance of about two thirds on."""
ROUNDS = 40


def session(experience: Experience, a: float, seed: int) -> tuple[Experience, Clocked]:
    """A session of ROUNDS rounds whose candidates stand with probability a, and what is known after it."""
    first, experience = experience.begin()
    state = GenerationState()
    clock = Clocked(
        constant(a), HARD, seed, state=replace(state, acceptance=replace(state.acceptance, prospects=first))
    )
    rule = Marginal(8, lambda: HARD)
    for _ in range(ROUNDS):
        clock.run(rule, 1)
        experience = experience.after(bytes([seed]), clock.plans[-1], clock.drafts[-1], clock.verdicts[-1])
    return experience, clock


def sessions(*acceptance: float) -> tuple[Experience, list[Clocked]]:
    experience, clocks = Experience(), []
    for seed, a in enumerate(acceptance):
        experience, clock = session(experience, a, seed)
        clocks.append(clock)
    return experience, clocks


def drafted(clock: Clocked) -> int:
    return sum(len(draft) > 0 for draft in clock.drafts)


def test_the_first_session_begins_as_if_alone() -> None:
    first, _ = Experience().begin()
    assert first.pack() == Prospects().pack()


def test_where_nothing_stands_later_sessions_hardly_try() -> None:
    _, clocks = sessions(*[0.1] * 12)
    assert drafted(clocks[0]) >= 2
    assert sum(map(drafted, clocks[4:])) <= 2 * len(clocks[4:]) * ROUNDS / PROBE_ROUNDS + 1


def test_where_all_stand_later_sessions_draft_from_the_first_round_on() -> None:
    _, clocks = sessions(*[0.95] * 4)
    assert len(clocks[-1].drafts[0]) > 1


def test_where_sessions_differ_each_finds_out() -> None:
    experience, clocks = sessions(*[0.1, 0.9] * 8)
    first, _ = experience.begin()
    assert 0.65 < first.mean < 0.99
    assert min(map(drafted, clocks[9::2])) > ROUNDS / 2


def test_rounds_without_candidates_count_for_one_probe_not_for_one_a_session() -> None:
    experience, _ = sessions(*[0.1] * 4)
    idle = replace(experience, pool=replace(experience.pool, idle=10 * PROBE_ROUNDS))
    one, rest = idle.begin()
    other, _ = rest.begin()
    assert (one.idle, other.idle) == (PROBE_ROUNDS, 0)


def test_what_is_passed_on_is_soon_outweighed() -> None:
    experience, _ = sessions(*[0.95] * 30)
    first, _ = experience.begin()
    assert float(first.taken.sum() + first.refused.sum()) == pytest.approx(64.0)
    assert np.isfinite(first.acceptance()).all()
    assert first.mean == pytest.approx(0.95, abs=0.05)
