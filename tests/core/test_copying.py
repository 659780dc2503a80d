"""When a block is copied from the text itself, and when the drafter is asked or nobody."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from adasd.core.adaptive import AcceptanceState
from adasd.core.context import Context
from adasd.core.copying import Copying, copying_for
from adasd.core.costs import CostProfile, paced
from adasd.core.decoding import Controller, OneByOne, copied
from adasd.core.foresight import Foresight
from adasd.core.marginal import Marginal
from adasd.core.metering import PACED_SURCHARGE, SHARED_SURCHARGE, CostMeter, Observation
from adasd.core.progress import Counters, GenerationState
from adasd.core.prospects import Prospects
from adasd.core.stopping import AdaSDStopping, Fixed, Off
from adasd.core.types import Draft, DraftPlan, Foreseen
from adasd.core.verdicts import Judgement, Verdict
from adasd.core.verification import judging, verification

DEAR = CostProfile("tests", fixed=3.0, draft=1.0, verify=tuple(1.0 + 0.05 * row for row in range(21)))
"""A drafter that never pays; longer passes that hardly cost."""
CHEAP = replace(DEAR, fixed=0.0, draft=0.01)
REPEATING = Context([1, 2, 3, 4, 5, 6, 9, 1, 2, 3])


class Several(OneByOne):
    """Runs of so many rounds. otherwise: where the text's end is new."""

    def __init__(self, foreseen: int, otherwise: int | None = None) -> None:
        self._foreseen, self._otherwise = foreseen, otherwise or foreseen

    def plain(self, foreseen: bool) -> int:
        return self._foreseen if foreseen else self._otherwise


def state(mean: float = 0.5, foresight: Foresight | None = None) -> AcceptanceState:
    return AcceptanceState(prospects=Prospects(mean=mean, weight=50.0, foresight=foresight or Foresight()))


def plan(costs: CostProfile, known: AcceptanceState, context: Context = REPEATING, **changes: object) -> DraftPlan:
    rule = Marginal(20, lambda: costs)
    controller = Controller(rule, verification("exact"), 200, Copying(rule, (5,)))
    controller = replace(controller, **changes)  # type: ignore[arg-type]
    return controller.plan(GenerationState(known, Counters(rounds=1)), context)


def test_what_the_text_foresees_needs_no_drafter_and_ends_with_the_text() -> None:
    chosen = plan(DEAR, state())
    block = copied(chosen)
    assert block is not None
    assert chosen.decision == "copy"
    assert block.ids == (4, 5), "nothing is copied past an EOS"
    assert (block.copied, block.entropies, [row.token for row in block.rows]) == (True, (0.0, 0.0), [4, 5])  # type: ignore[attr-defined]


def test_it_never_goes_past_the_limit() -> None:
    assert copied(plan(DEAR, state(), limit=12)).ids == (4,)  # type: ignore[union-attr]
    assert plan(DEAR, state(), limit=11).max_candidates == 0


def test_nothing_is_copied_where_it_seldom_came_true_or_nothing_repeats() -> None:
    hopeless = Foresight()
    for _ in range(40):
        hopeless = hopeless.after(Foreseen((4,), 3), [9])
    steep = replace(DEAR, verify=tuple(1.0 + 0.2 * row for row in range(21)))
    assert plan(steep, state()).decision == "copy"
    refused = plan(steep, state(foresight=hopeless))
    assert (refused.decision, refused.foreseen) == ("off", Foreseen((4, 5, 6, 9, 1, 2, 3), 3)), "it still learns"
    assert plan(DEAR, state(), Context(range(10))) == plan(DEAR, state(), Context(range(10)), copying=None)


def test_a_drafter_that_earns_more_is_asked() -> None:
    assert plan(CHEAP, state(mean=0.9)).decision == "draft"
    assert plan(CHEAP, state(mean=0.1)).decision == "copy"


CROWDED = replace(DEAR, copied=tuple(1.0 + 0.05 * row + 2.5 * (row > 0) for row in range(21)), joined=DEAR.verify)
"""A message of its own costs a session two passes and a half."""


def test_a_block_that_is_not_worth_its_message_begins_a_run() -> None:
    alone = plan(CROWDED, state())
    assert (alone.decision, alone.rounds) == ("off", 1)
    joined = plan(CROWDED, state(), runs=Several(4, 9))
    assert (joined.decision, joined.max_candidates, joined.rounds) == ("copy", 2, 4)
    assert (joined.foreseen, joined.worth) == (alone.foreseen, alone.worth)


def test_a_block_that_is_worth_a_message_every_time_waits_for_no_run() -> None:
    certain = Foresight()
    for _ in range(40):
        certain = certain.after(Foreseen((4, 5, 6, 9), 3), [4, 5, 6, 9])
    for surcharge, rounds in ((0.2, 1), (1.5, 4)):
        dearer = replace(DEAR, copied=(1.0, *(seconds + surcharge for seconds in DEAR.verify[1:])), joined=DEAR.verify)
        chosen = plan(dearer, state(foresight=certain), runs=Several(4))
        assert (chosen.decision, chosen.rounds) == ("copy", rounds)


def test_a_run_that_a_block_begins_ends_with_the_text() -> None:
    for limit, candidates, rounds in ((13, 0, 3), (14, 2, 2), (40, 2, 4)):
        chosen = plan(CROWDED, state(), limit=limit, runs=Several(4))
        assert (chosen.max_candidates, chosen.rounds) == (candidates, rounds)
        assert REPEATING.base + candidates + rounds <= limit


def test_what_a_block_and_its_run_teach_is_what_its_rounds_would() -> None:
    chosen = plan(CROWDED, state(), runs=Several(3))
    block = copied(chosen)
    assert block is not None
    assert chosen.worth is not None
    steep = tuple(1.0 + row for row in range(21))
    joined = replace(chosen, worth=replace(chosen.worth, costs=replace(CROWDED, joined=steep)))
    first = Verdict((4, 5, 7), 2, "bonus", (Judgement(0.0, True, True),) * 2)
    whole = first.then(Verdict((8,), 0, "bonus")).then(Verdict((9,), 0, "bonus"))
    asked = replace(chosen, rounds=1, worth=replace(chosen.worth, costs=replace(CROWDED, copied=steep)))
    single = state().prospects.after(asked, block, first)
    for token in (8, 9):
        plain = replace(asked, max_candidates=0, foreseen=None, copies=False)
        single = single.after(plain, Draft(), Verdict((token,), 0, "bonus"))
    run = state().prospects.after(joined, block, whole)
    assert (run.tokens, run.work) == (pytest.approx(single.tokens, rel=0.01), pytest.approx(single.work, rel=0.01))
    assert run.work > 1.05
    assert (run.idle, run.mean) == (single.idle, single.mean)
    assert run.foresight.pack() == single.foresight.pack()


def test_a_copy_goes_before_a_probe() -> None:
    due = AcceptanceState(prospects=replace(state(mean=0.2).prospects, idle=10_000))
    assert plan(DEAR, due, Context(range(10))).decision == "probe"
    assert plan(DEAR, due).decision == "copy"


def test_only_the_rule_that_weighs_costs_copies() -> None:
    assert isinstance(copying_for(Marginal(5), (), wanted=True), Copying)
    for stopping, wanted in ((Marginal(5), False), (Off(), True), (Fixed(3), True), (AdaSDStopping(), True)):
        assert copying_for(stopping, (), wanted) is None


@pytest.mark.parametrize(
    ("asked", "judged"), [("exact", "exact"), ("adasd", "exact"), ("adasd-anchored", "exact"), ("coupled", "coupled")]
)
def test_a_copy_is_judged_exactly(asked: str, judged: str) -> None:
    block = copied(plan(DEAR, state()))
    assert block is not None
    assert judging(asked, block) == judged
    assert judging(asked, replace(block, copied=False)) == asked


def test_sessions_that_copy_stay_together() -> None:
    """Four that take turns at one computer: drafting they come apart into passes of one; copying they do not."""
    plain = Observation(0, 1.0, 0.0, sessions=4.0, rows=4, running=4.0)
    drafted = Observation(2, 1.0, 0.0, 0.1, 0.1, 2, sessions=1.0, rows=3, running=4.0)
    copies = Observation(2, 1.2, 0.0, sessions=4.0, rows=6, running=4.0, copied=True)
    meter = CostMeter()
    for seen in [plain, drafted] * 40:
        meter = meter.after(seen)
    apart = meter.profile()
    assert apart.copied_rounds[2] < apart.rounds[2]
    (alone, longer), kept = meter._passes(np.array([4, 6])).tolist(), meter.together.otherwise(4.0)
    added = apart.copied_rounds[2] - apart.copied_rounds[0]
    assert added == pytest.approx(SHARED_SURCHARGE * 4 * (longer - alone)), "everybody waits for the block of one"
    assert CostMeter().profile().copied_rounds[2] < apart.copied_rounds[2]
    told = paced([0.5, 0.5, 0.75, 1.25, 2.0], [0.1])
    measured = replace(meter, prior=told, paced=True).profile()
    passes = measured.copied_rounds[0]
    assert measured.copied_rounds[4] == pytest.approx(passes * (1 + PACED_SURCHARGE * 4 * (1.25 / 0.75 - 1)))
    for _ in range(10):
        meter = meter.after(copies)
    assert meter.together.otherwise(4.0) == kept, "how they come apart is not learned from copies"
