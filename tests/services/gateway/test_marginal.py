"""The marginal rule in the running gateway: what its text depends on, and what it is seen to do."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from adasd.core.adaptive import AcceptanceState
from adasd.core.costs import NOMINAL, CostProfile
from adasd.core.decoding import TokenBoundary
from adasd.core.errors import InvalidRequest
from adasd.core.marginal import Marginal
from adasd.core.messages import Timing
from adasd.core.metering import Observation
from adasd.core.outlook import Outlook
from adasd.core.stopping import stopping_rule
from adasd.core.types import SamplingParams
from services.gateway.costs import LiveCosts, RoundWatch, load_profile
from tests.rpc.messages import INFO
from tests.services.gateway.conftest import Gateway

PREFIX = "adasd_spec_decode"


def under(stopping: str, acceptance: str = "exact") -> dict[str, Any]:
    return {"max_tokens": 60, "speculation": {"stopping": stopping, "acceptance": acceptance}}


def text_of(body: dict[str, Any]) -> str:
    text: str = body["choices"][0]["message"]["content"]
    return text


def teach(costs: LiveCosts, drafting: float) -> None:
    """Rounds in which a candidate took so long, a pass of the target 1 s."""
    for candidates in (0, 1, 4) * 40:
        costs.add(Observation(candidates, 1.0, 0.0, drafting if candidates else None, 0.0, 0))
        costs.add(Observation(candidates, 1.0, 0.0, drafting, 0.01, 1))
    costs.digest()


def now(costs: LiveCosts) -> CostProfile:
    """The costs once all that was put down is reckoned with."""
    costs.digest()
    return costs.profile()


@pytest.mark.parametrize("fields", [{"temperature": 0}, {"seed": 5}], ids=["greedy", "coupled"])
async def test_a_text_that_is_the_targets_own_does_not_depend_on_the_rule(
    gateway: Gateway, fields: dict[str, Any]
) -> None:
    rule = "coupled" if "seed" in fields else "exact"
    plain = (await gateway.post(**fields, **under("off", rule))).json()
    for drafting in (0.0, 30.0):
        teach(gateway.services.engine.costs, drafting)
        weighed = (await gateway.post(**fields, **under("marginal", rule))).json()
        assert text_of(weighed) == text_of(plain)
        assert weighed["system_fingerprint"] == plain["system_fingerprint"]
        record = weighed["speculation"]
        assert (record["drafted"] - record["copied"] > 20) == (drafting == 0.0)


async def test_a_seeded_text_depends_on_the_stated_costs_and_not_on_the_clock(gateway: Gateway) -> None:
    texts = set()
    for drafting in (0.0, 30.0):
        teach(gateway.services.engine.costs, drafting)
        reply = await gateway.post(seed=3, **under("marginal"))
        texts.add(text_of(reply.json()))
    stored = await gateway.stored(reply)
    prompt, boundary = list(stored.record.prompt), TokenBoundary({0}, 60)
    rule = stopping_rule("marginal", None)
    rounds = list(gateway.oracle.generate(prompt, SamplingParams(seed=3), rule, "exact", 60, boundary, copying=True))
    assert list(stored.ids) == prompt + [token for step in rounds for token in step.verdict.tokens]
    assert stored.state == rounds[-1].state.acceptance.pack()
    assert len(texts) == 1
    assert {step.plan.decision for step in rounds} >= {"draft"}
    assert reply.json()["system_fingerprint"].endswith(f"_{NOMINAL.version}")
    assert stored.record.parameters["cost_profile"] == NOMINAL.version


async def test_other_rules_have_nothing_to_do_with_costs(gateway: Gateway) -> None:
    reply = await gateway.post(seed=3, **under("adasd"))
    assert NOMINAL.version not in reply.json()["system_fingerprint"]
    assert (await gateway.stored(reply)).record.parameters["cost_profile"] is None


async def test_an_unseeded_text_follows_the_clock_to_zero_candidates_and_back(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it was taught: what the rounds themselves take depends on what else this machine does."""
    costs, drafts = gateway.services.engine.costs, []
    add = costs.add
    for drafting in (0.0, 30.0, 0.0):
        monkeypatch.setattr(costs, "add", add)
        teach(costs, drafting)
        monkeypatch.setattr(costs, "add", lambda seen: None)
        answers = [(await gateway.post(ignore_eos=True, **under("marginal"))).json() for _ in range(4)]
        records = [answer["speculation"] for answer in answers]  # a text or two may be hard for the draft
        drafts.append(sum(record["drafts"] for record in records) / sum(record["rounds"] for record in records))
    assert drafts[1] < 0.2 < 0.35 < min(drafts[0], drafts[2])


async def test_decisions_are_metrics(gateway: Gateway) -> None:
    teach(gateway.services.engine.costs, 0.0)
    record = (await gateway.post(**under("marginal"))).json()["speculation"]
    counts = [
        await gateway.metric(f'{PREFIX}_num_decisions_total{{decision="{decision}"}}')
        for decision in ("off", "probe", "draft", "copy")
    ]
    assert sum(counts) == record["rounds"]
    assert sum(counts[1:]) >= record["drafts"] > 0
    weighed = await gateway.metric(f"{PREFIX}_going_rate_tokens_per_second_count")
    assert weighed == counts[0] + counts[2] + counts[3] - 1  # the first round is planned without weighing
    assert await gateway.metric(f'{PREFIX}_cost_seconds{{part="verify"}}') > 0


ACCOUNT = Timing(forwards=4, queue=0.1, forward=0.3, rules=0.1)


class Seen(LiveCosts):
    """Keeps what it is told."""

    def __init__(self, shared_cores: bool = False) -> None:
        super().__init__(shared_cores=shared_cores)
        self.rounds: list[Observation] = []

    def add(self, seen: Observation) -> None:
        self.rounds.append(seen)
        super().add(seen)


def watched(*rounds: tuple[Timing | None, int]) -> list[Observation]:
    """What is told of rounds with these accounts, None where the drafter was not asked, and so many candidates."""
    costs = Seen()
    watch = RoundWatch(costs)
    for timing, candidates in rounds:
        if timing is not None:
            watch.drafted(0.7, timing, candidates)
        watch.verified(1.0, Timing(), candidates)
    return costs.rounds


def test_a_prefill_says_nothing_and_a_drafter_that_catches_up_little() -> None:
    told = watched((None, 0), (ACCOUNT, 3), (ACCOUNT, 3), (None, 0), (ACCOUNT, 3), (ACCOUNT, 0), (ACCOUNT, 3))
    cold = Observation(3, 1.0, 0.0, drafting=0.7, work=0.4)
    warm, off = Observation(3, 1.0, 0.0, drafting=0.7, work=0.4, steps=4), Observation(0, 1.0, 0.0)
    assert told == [cold, warm, off, cold, off, cold]


def test_a_copied_block_is_known_by_nobody_having_drafted_it() -> None:
    told = watched((None, 0), (ACCOUNT, 3), (None, 2), (ACCOUNT, 3))
    drafted = Observation(3, 1.0, 0.0, drafting=0.7, work=0.4)
    assert told == [drafted, Observation(2, 1.0, 0.0, copied=True), drafted], "and the drafter has to catch up after it"


def test_what_a_block_waits_for_its_pass_is_left_out() -> None:
    costs = Seen()
    watch = RoundWatch(costs)
    for queue in (0.0, 0.25, 2.0):
        watch.verified(1.0, Timing(queue=queue), 0)
    assert costs.rounds == [Observation(0, 0.75, 0.0), Observation(0, 0.0, 0.0)]


def test_a_round_begun_ahead_costs_what_it_took_and_not_what_was_seen_of_it() -> None:
    """A pass of 0.75 s, of which the gateway waited for the last bit, and one that had ended when it was asked for."""
    costs = Seen()
    costs.told(replace(INFO, runs_ahead=True), None)
    watch = RoundWatch(costs)
    watch.verified(1.0, Timing(forwards=1, sessions=1, tokens=20), 0)
    for waited, ahead in ((0.25, 0.5), (1.0, 0.75)):
        watch.verified(waited, Timing(1, 0.0, 0.625, 0.125, 1, 1, ahead), 0)
    assert [(seen.verify, seen.way) for seen in costs.rounds] == [(0.75, 0.0), (0.75, 0.25)]


@pytest.mark.parametrize(("runs_ahead", "plain"), [(False, 0.25), (True, None)])
def test_a_plain_round_is_priced_as_one_among_plain_ones(runs_ahead: bool, plain: float | None) -> None:
    """Beside rounds with candidates none is begun ahead; were there no candidates, all would be."""
    costs = Seen()
    costs.told(replace(INFO, runs_ahead=runs_ahead), None)
    watch = RoundWatch(costs)
    told = Timing(1, 0.25, 0.625, 0.125, 1, 1)
    for candidates in (0, 0, 3):
        watch.verified(1.25, told, candidates)
    assert [(seen.verify, seen.way) for seen in costs.rounds] == [(0.75, plain), (0.75, 0.25)]


def test_of_a_block_read_in_parts_the_passes_are_told() -> None:
    """Of twenty candidates five were read and not all stood; then all of them, six more rows at least."""
    costs = Seen()
    watch = RoundWatch(costs)
    accounts = Timing(1, 0.0, 0.5, 0.0, 1, 6), Timing(2, 0.0, 1.5, 0.0, 2, 22)
    for told in (Timing(1, 0.0, 1.0, 0.0, 1, 40), *accounts):
        watch.drafted(0.7, ACCOUNT, 20)
        watch.verified(1.5, told, 20)
    assert [(seen.candidates, seen.rows, seen.verify) for seen in costs.rounds] == [(20, 6, 0.5), (20, 11, 0.75)]


@pytest.mark.parametrize(("drafters", "share"), [(4, 4.0), (8, 2.0), (16, 1.0), (32, 1.0)])
def test_on_shared_cores_a_step_costs_all_who_wait_for_it(drafters: int, share: float) -> None:
    """Four steps for so many sessions together, beside a target that serves four at a pass."""
    costs = Seen(shared_cores=True)
    watch = RoundWatch(costs)
    for _ in range(4):
        watch.drafted(0.75, replace(ACCOUNT, sessions=drafters), 3)
        watch.verified(1.0, Timing(forwards=1, sessions=4, tokens=16), 3)
    seen = costs.rounds[-1]
    assert (seen.work, seen.steps, seen.served) == (0.4, 4, drafters / 4)
    assert seen.drafting == pytest.approx(0.65)  # the queue of 0.1 s costs nobody
    profile = now(costs)
    assert profile.draft == pytest.approx(0.1 * share)
    assert profile.fixed == pytest.approx(0.25)


def test_on_shared_cores_a_drafter_that_nobody_has_seen_is_priced_by_the_load() -> None:
    """As the prior has it of a pass, for all who would wait; a drafter that computes for itself is tried."""
    for shared, price in ((False, 0.0), (True, 8 * NOMINAL.draft / NOMINAL.passes[0])):
        costs = Seen(shared_cores=shared)
        watch = RoundWatch(costs)
        for _ in range(20):
            watch.verified(1.0, Timing(forwards=1, forward=1.0, sessions=8, tokens=8), 0)
        profile = now(costs)
        assert profile.draft / profile.rounds[0] == pytest.approx(price, rel=0.2)


def test_what_a_drafter_has_to_read_costs_all_who_share_the_cores() -> None:
    """The target tells what an id may cost until the drafter has read some; then that does."""
    costs = Seen(shared_cores=True)
    first = RoundWatch(costs)
    first.verified(1.0, Timing(forwards=1, forward=1.0, sessions=4, tokens=400), 0)
    first.verified(1.0, Timing(forwards=1, sessions=4, tokens=4), 0)
    stated = NOMINAL.draft / NOMINAL.passes[0]
    assert now(costs).reading == pytest.approx(4 * stated * 1.0 / 400)
    first.drafted(0.9, replace(ACCOUNT, sessions=4, tokens=100), 3)
    first.verified(1.0, Timing(forwards=1, sessions=4, tokens=7), 3)
    costs._due = 0.0
    assert now(costs).reading == pytest.approx(4 * 0.4 / 100)
    first.drafted(0.9, replace(ACCOUNT, sessions=4, tokens=3), 3)
    first.verified(1.0, Timing(forwards=1, sessions=4, tokens=7), 3)
    assert costs.rounds[-1].read == 0, "it had nothing to catch up with"
    assert now(Seen()).reading == 0.0


def test_on_shared_cores_all_sessions_wait_whoever_is_in_the_pass() -> None:
    """Eight run; four of them are in this pass of the target and in those of the drafter."""
    costs = Seen(shared_cores=True)
    watch = RoundWatch(costs)
    with ExitStack() as stack:
        for _ in range(8):
            stack.enter_context(costs.session())
        for _ in range(2):
            watch.drafted(0.75, replace(ACCOUNT, sessions=16), 3)
            watch.verified(1.0, Timing(forwards=1, sessions=4, tokens=16), 3)
        assert now(costs).draft == pytest.approx(0.1 * 2)
    seen = costs.rounds[-1]
    assert (seen.sessions, seen.rows, seen.running, seen.served) == (4.0, 16, 8.0, 4.0)
    assert costs.running == 0


def running(costs: LiveCosts, sessions: int) -> ExitStack:
    stack = ExitStack()
    for _ in range(sessions):
        stack.enter_context(costs.session())
    return stack


def alone_for_a_while() -> LiveCosts:
    """A target of 20 ms and 2 ms for a row more, a drafter of 2 ms a step, and a session by itself that drafts."""
    costs = LiveCosts(shared_cores=True)
    passes = tuple(0.018 + 0.002 * 2**power for power in range(7))
    costs.told(replace(INFO, passes=passes), replace(INFO, passes=(0.002,) * 7))
    watch = RoundWatch(costs)
    with running(costs, 1):
        for candidates in (0, 2) * 40:
            if candidates:
                watch.drafted(0.005, Timing(forwards=2, forward=0.004, sessions=2), candidates)
            passed = Timing(forwards=1, forward=0.019 + 0.002 * candidates, sessions=1, tokens=1 + candidates)
            watch.verified(0.02 + 0.002 * candidates, passed, candidates)
            costs.digest()
    return costs


def decided(costs: LiveCosts) -> str:
    """What a session plans that has just read a prompt of a hundred ids."""
    return Marginal(20, costs.profile).plan(AcceptanceState(), Outlook(base=100, room=32)).decision


def test_on_shared_cores_a_load_counts_from_the_moment_it_comes() -> None:
    """Sixteen sessions that begin at once must not each have the drafter read a prompt, at the price for one."""
    costs = alone_for_a_while()
    with running(costs, 1):
        alone = costs.profile()
        assert decided(costs) == "draft"
        with running(costs, 15):
            under_load = costs.profile()
            assert decided(costs) == "off"
            assert under_load.draft == pytest.approx(16 * alone.draft)
            assert under_load.passes[0] == pytest.approx(0.018 + 0.002 * 16, rel=0.1)
        assert costs.profile() == alone, "nor does it count any longer than it lasts"


def test_sessions_of_other_gateways_count_as_passes_show_them() -> None:
    costs = alone_for_a_while()
    watch = RoundWatch(costs)
    with running(costs, 2):
        for _ in range(300):
            watch.verified(0.04, Timing(forwards=1, forward=0.04, sessions=8, tokens=8), 0)
        assert now(costs).passes[0] == pytest.approx(0.04, rel=0.1)
        assert now(costs).draft == pytest.approx(0.002 * 8, rel=0.1)
        with running(costs, 2):
            assert costs.profile().draft == pytest.approx(0.002 * 10, rel=0.1)


def test_without_an_account_all_the_time_is_work() -> None:
    told = watched((None, 0), (Timing(), 2), (Timing(), 2))
    assert told == [Observation(2, 1.0, 0.0), Observation(2, 1.0, 0.0, drafting=0.7, work=0.7, steps=2)]


def test_a_profile_comes_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    path.write_text('{"version": "two", "fixed": 0.5, "draft": 0.1, "verify": [1, 1.5]}')
    assert load_profile(path).version == "two"
    assert load_profile(None) is NOMINAL
    live = LiveCosts()
    teach(live, 0.5)
    path.write_text(live.figures())
    assert load_profile(path) == now(live)
    for content in ("[]", "{", '{"version": "two"}'):
        path.write_text(content)
        with pytest.raises(InvalidRequest, match="cost_profile"):
            load_profile(path)
    with pytest.raises(InvalidRequest, match="cost_profile"):
        load_profile(tmp_path / "missing.json")


def test_costs_are_worked_out_when_no_block_waits_for_them() -> None:
    costs = LiveCosts()
    before = costs.profile()
    for _ in range(40):
        costs.add(Observation(0, 1.0, 0.0))
    assert costs.profile() is before
    costs.digest()
    assert costs.profile().rounds[0] == pytest.approx(1.0, rel=0.1)


def told(target: tuple[float, ...], draft: tuple[float, ...], costs: LiveCosts) -> float:
    """What a plain round is thought to cost once both models have told what their passes took."""
    costs.told(replace(INFO, passes=target), replace(INFO, passes=draft))
    return costs.profile().passes[0]


def test_what_passes_took_before_the_first_request_is_better_than_a_guess_and_no_better_than_anything_else() -> None:
    guess, busy = NOMINAL.passes[0], LiveCosts()
    assert told((0.5, 0.75), (0.125,), LiveCosts()) == 0.5
    assert told((0.5, 0.75), (), LiveCosts()) == told((), (0.125,), LiveCosts()) == guess, "an earlier release"
    assert told((0.0, 0.75), (0.125,), LiveCosts()) == guess, "of no use"
    assert told((0.5, 0.75), (0.125,), LiveCosts(replace(NOMINAL, version="mine"))) == guess, "stated"
    teach(busy, 0.1)
    busy.digest()
    assert told((0.5, 0.75), (0.125,), busy) == pytest.approx(1.0, rel=0.05)
    costs = LiveCosts()
    told((0.5, 0.75), (0.125,), costs)
    assert costs.source(pinned=True)() is NOMINAL, "a text that must not depend on the clock"


async def test_many_at_once_share_what_is_known(gateway: Gateway) -> None:
    replies = await asyncio.gather(*(gateway.post(**under("marginal")) for _ in range(4)))
    assert all(reply.status_code == 200 for reply in replies)
    profile = gateway.services.engine.costs.profile()
    assert profile.version == "live"
    assert profile.verify[0] != NOMINAL.verify[0]


def test_a_plain_round_beside_others_that_draft_is_told_without_its_way() -> None:
    """On shared cores, until all sessions have had a round without them. One by itself waits for nobody's."""
    for sessions, ways in ((2, [0.25, None, None, 0.25]), (1, [0.25, 0.25, 0.25, 0.25])):
        costs = Seen(shared_cores=True)
        with running(costs, sessions):
            one, other = RoundWatch(costs), RoundWatch(costs)
            told = Timing(1, 0.0, 0.75, 0.0, 1, 1)
            for watch in (one, other):
                watch.verified(1.0, told, 0)  # a prefill
            other.drafted(0.5, ACCOUNT, 3)
            other.verified(1.0, told, 3)
            for _ in range(3):
                one.verified(1.0, told, 0)
        assert [seen.way for seen in costs.rounds] == ways


def test_a_run_that_begins_with_copies_is_a_plain_one_beside_others_that_draft() -> None:
    """Most of its rounds have no candidates, and they wait for drafts as others do."""
    costs = Seen(shared_cores=True)
    with running(costs, 2):
        one, other = RoundWatch(costs), RoundWatch(costs)
        for watch in (one, other):
            watch.verified(1.0, Timing(1, 0.0, 0.75, 0.0, 1, 1), 0)  # a prefill
        other.drafted(0.5, ACCOUNT, 3)
        other.verified(1.0, Timing(1, 0.0, 0.75, 0.0, 1, 4), 3)
        one.verified(4.0, Timing(4, 0.0, 3.0, 0.0, 4, 6), 2, rounds=4)
    assert [(seen.candidates, seen.way) for seen in costs.rounds] == [(3, 0.25), (0, None)]
