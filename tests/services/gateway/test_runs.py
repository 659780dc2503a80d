"""Rounds without candidates taken several at once: the same text and account, told and committed less often."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from adasd.core.context import Context
from adasd.core.costs import NOMINAL, CostProfile
from adasd.core.decoding import OneByOne, TokenBoundary
from adasd.core.messages import Timing
from adasd.core.metering import Observation
from adasd.core.progress import Counters, GenerationState
from adasd.core.prospects import Prospects
from adasd.core.stopping import stopping_rule
from adasd.core.types import Draft, DraftPlan, SamplingParams
from adasd.core.verdicts import Verdict
from adasd.core.worth import ENTROPY_NODES, Worth
from services.gateway.costs import LiveCosts, RoundWatch
from services.gateway.request import GenerationRequest
from services.gateway.runs import BURST_SECONDS, MOST, RunLength
from services.gateway.text import ChatText
from tests.rpc.messages import INFO
from tests.services.gateway.conftest import Gateway, gateway_of
from tests.services.gateway.recital import SPEC, reciting, spelled, write_recital
from tests.services.gateway.resuming import Told, handed_over, streamed
from tests.services.gateway.test_marginal import now

DEAR = CostProfile("dear", 30.0, 30.0, NOMINAL.verify)
OFF: dict[str, Any] = {"seed": 3, "speculation": {"stopping": "off"}}
PLAIN = DraftPlan(0)


@pytest.fixture
async def running(redis_url: str, toy_text: ChatText) -> AsyncIterator[Gateway]:
    """A gateway that takes three rounds at once, where candidates are never worth their time."""
    async with gateway_of(redis_url, toy_text, "running", prior=DEAR, runs=RunLength(3)) as gateway:
        yield gateway


def told_at_once(answer: Told) -> list[int]:
    """Tokens of each event."""
    places = [int(name.partition("-")[0]) for name in answer.names if name]
    return [after - before for before, after in pairwise(places) if after > before]


@pytest.mark.parametrize("limit", [60, 1, 2, 3, 5, 18])
@pytest.mark.parametrize("more", [OFF, {"temperature": 0, "speculation": {"stopping": "marginal", "copying": False}}])
async def test_text_account_and_record_are_those_of_single_rounds(
    gateway: Gateway, running: Gateway, more: dict[str, Any], limit: int
) -> None:
    fields = {**more, "max_tokens": limit}
    single, runs = (
        await streamed(gateway, **{**fields, "speculation": {"stopping": "off"}}),
        await streamed(running, **fields),
    )
    assert (runs.text, runs.finish) == (single.text, single.finish)
    assert runs.account["usage"] == single.account["usage"]
    record = runs.account["speculation"]
    assert record["rounds"] + record["accepted"] in (runs.account["usage"]["completion_tokens"] + cut for cut in (0, 1))
    if more is OFF:
        assert record == single.account["speculation"]
    stored = await running.store.load(bytes.fromhex(runs.session))
    assert stored is not None
    assert stored.rounds == stored.counters["rounds"] == record["rounds"]


async def test_the_first_token_comes_alone_and_the_others_together(running: Gateway) -> None:
    """As far as the text goes: this one ends within a run."""
    expected = await streamed(running, **OFF)
    tokens = expected.account["usage"]["completion_tokens"]
    sizes = told_at_once(expected)
    assert sizes[:2] == [1, 2], "the first run ends where it would had it begun with the text"
    assert set(sizes[2:-1]) == {3}
    assert sum(sizes) == tokens


async def test_what_is_counted_is_rounds(running: Gateway) -> None:
    answer = await streamed(running, **OFF)
    rounds = answer.account["speculation"]["rounds"]
    assert await running.metric("adasd_spec_decode_num_rounds_total") == rounds
    assert await running.metric('adasd_spec_decode_num_decisions_total{decision="off"}') == rounds
    assert await running.metric("adasd_spec_decode_block_length_count") == rounds


async def test_how_many_rounds_are_asked_for_is_a_metric(running: Gateway) -> None:
    engine = running.services.engine
    engine.metrics.watch_runs(engine.costs.runs.plain)
    assert await running.metric("adasd_spec_decode_run_length") == 3


async def test_a_stop_string_within_a_run_ends_the_text_there(gateway: Gateway, running: Gateway) -> None:
    whole = await streamed(gateway, **OFF)
    for place in range(4, 10):
        stop = whole.text[place : place + 2]
        single, run = [await streamed(one, **OFF, stop=[stop]) for one in (gateway, running)]
        assert (run.text, run.finish, run.account) == (single.text, single.finish, single.account)


async def test_log_probabilities_come_with_every_token_of_a_run(gateway: Gateway, running: Gateway) -> None:
    fields = {**OFF, "max_tokens": 12, "logprobs": True, "top_logprobs": 2}
    single, run = [(await one.post(**fields)).json()["choices"][0]["logprobs"] for one in (gateway, running)]
    assert run == single
    assert len(run["content"]) == 12


@pytest.mark.parametrize("held", [1, 3, 6])
async def test_a_stream_is_taken_over_between_runs(gateway: Gateway, running: Gateway, held: int) -> None:
    """By a gateway that takes its rounds one by one, and back."""
    expected = await streamed(gateway, **OFF)
    for answer in await handed_over(running, gateway, held, **OFF):
        assert (answer.text, answer.finish, answer.account) == (expected.text, expected.finish, expected.account)


async def test_a_seeded_text_that_depends_on_its_rounds_has_them_one_by_one(running: Gateway) -> None:
    fields = {"seed": 3, "max_tokens": 40, "speculation": {"stopping": "marginal", "acceptance": "exact"}}
    answer = await streamed(running, **fields)
    stored = await running.store.load(bytes.fromhex(answer.session))
    assert stored is not None
    prompt, rule = list(stored.record.prompt), stopping_rule("marginal", None, lambda: DEAR)
    asked = prompt, SamplingParams(seed=3), rule, "exact", 40, TokenBoundary({0}, 40)
    rounds = list(running.oracle.generate(*asked, copying=True))
    assert stored.state == rounds[-1].state.acceptance.pack()
    assert told_at_once(answer) == [len(step.verdict.tokens) for step in rounds]


class Crowded(RunLength):
    """As if others were always in runs of three."""

    def plain(self, foreseen: bool = False) -> int:
        return 3

    def apart(self) -> float:
        return 60.0


VERSE = "the sea is wide and the sky is wide and "


@pytest.fixture
async def crowded(redis_url: str, tmp_path: Path) -> AsyncIterator[Gateway]:
    """A gateway whose model repeats itself, among others; passes hardly grow with their rows."""
    flat = CostProfile("flat", 90.0, 90.0, tuple(1.0 + 0.001 * row for row in range(21)))
    text = ChatText.load(write_recital(tmp_path))
    async with gateway_of(redis_url, text, "crowded", spec=SPEC, prior=flat, runs=Crowded()) as gateway:
        answer = spelled(3 * VERSE)
        gateway.peers.target_replica, gateway.peers.draft_replica = reciting(answer), reciting(answer)
        yield gateway


COPIED: dict[str, Any] = {"temperature": 0, "max_tokens": 200, "speculation": {"stopping": "marginal", "trace": True}}


async def test_blocks_that_begin_runs_change_neither_text_nor_account(crowded: Gateway) -> None:
    for limit in (200, 100, 99, 98):
        answer = await streamed(crowded, **{**COPIED, "max_tokens": limit})
        assert answer.text == (3 * VERSE)[:limit]
        record = answer.account["speculation"]
        assert record["copied"] > 10
        assert record["accepted"] > 8
        tokens = answer.account["usage"]["completion_tokens"]
        assert record["rounds"] + record["accepted"] in (tokens, tokens + 1)
        assert max(told_at_once(answer)) > 3, "a block and the rounds after it"
        stored = await crowded.store.load(bytes.fromhex(answer.session))
        assert stored is not None
        assert stored.rounds == stored.counters["rounds"] == record["rounds"]


async def test_of_a_run_that_a_block_begins_one_round_had_candidates(crowded: Gateway) -> None:
    record = (await streamed(crowded, **COPIED)).account["speculation"]
    decided = {
        kind: await crowded.metric(f'adasd_spec_decode_num_decisions_total{{decision="{kind}"}}')
        for kind in ("off", "copy", "probe", "draft")
    }
    assert decided["off"] == record["rounds"] - record["drafts"]
    assert record["drafts"] == sum(decided.values()) - decided["off"] >= decided["copy"] > 3
    assert await crowded.metric("adasd_spec_decode_block_length_count") == record["rounds"]
    assert await crowded.metric("adasd_spec_decode_block_length_sum") == record["drafted"]


async def test_a_stop_string_within_a_block_or_the_run_after_it_ends_the_text_there(crowded: Gateway) -> None:
    whole = 3 * VERSE
    for place in range(44, 60, 3):
        stop = whole[place - 43 : place]
        answer = await streamed(crowded, **COPIED, stop=[stop])
        assert (answer.text, answer.finish) == (whole[: whole.index(stop)], "stop")


class Known(OneByOne):
    def plain(self, foreseen: bool) -> int:
        return 1 if foreseen else 3


@pytest.mark.parametrize(("prompt", "rounds"), [((1, 2, 3, 4, 5), 3), ((1, 2, 3, 1, 2), 1)], ids=["new", "repeated"])
def test_where_the_text_may_soon_be_copied_rounds_are_single(prompt: tuple[int, ...], rounds: int) -> None:
    steep = CostProfile("steep", 30.0, 30.0, tuple(0.1 * 9**rows for rows in range(21)))
    rule = stopping_rule("marginal", None, lambda: steep)
    asked = bytes(16), prompt, SamplingParams(), rule, "exact", 9, 99, frozenset[int](), ()
    controller = GenerationRequest(*asked, seeded=False, copying=True).controller(Known())
    state = GenerationState(counters=Counters(rounds=1))
    assert controller.plan(state, Context(prompt)).rounds == rounds
    assert controller.plan(GenerationState(), Context(prompt)).rounds == 1, "the prompt's own"


def test_what_a_run_teaches_is_what_its_rounds_would() -> None:
    worth = Worth((0.5,) * ENTROPY_NODES, 0.5, 1.0, NOMINAL)
    plan, single, run = DraftPlan(0, worth=worth), Prospects(tokens=2.5, work=1.5), Prospects(tokens=2.5, work=1.5)
    for _ in range(4):
        single = single.after(plan, Draft(), Verdict((1,), 0, "bonus"))
    run = run.after(plan, Draft(), Verdict((1, 1, 1, 1), 0, "bonus"))
    assert (run.tokens, run.work, run.idle) == (pytest.approx(single.tokens), pytest.approx(single.work), 4)


def answered(
    length: RunLength, message: float, pass_: float, rounds: int = 1, ahead: float = 0.0, sessions: int = 1
) -> int:
    for _ in range(64):
        told = Timing(rounds, 0.0, rounds * pass_, 0.0, sessions * rounds, rounds, ahead)
        length.answered(rounds * pass_ - ahead + message, told, rounds)
    return length.plain()


def test_a_run_is_as_long_as_its_message_is_dear() -> None:
    assert RunLength().plain() == 1, "nothing is known"
    assert answered(RunLength(), 0.0001, 0.01) == 1
    assert answered(RunLength(), 0.00075, 0.02) == 2
    assert answered(RunLength(), 0.00125, 0.02) == 4, "a power of two"
    assert answered(RunLength(), 0.00075, 0.02, rounds=5) == 2, "however many rounds that was found out by"
    assert answered(RunLength(), 0.005, 0.01) == MOST
    slow = answered(RunLength(), 0.01, 0.15)
    assert slow * 0.15 <= BURST_SECONDS < 2 * slow * 0.15
    assert answered(RunLength(), 1.0, 2 * BURST_SECONDS) == 1


def test_a_message_that_the_model_did_not_wait_for_costs_nothing() -> None:
    """Its rounds were begun ahead, and went on when they were asked for; or had ended, and then it did wait."""
    assert answered(RunLength(), 0.01, 0.01, ahead=0.004) == 1
    assert answered(RunLength(), 0.01, 0.01, ahead=0.01) == MOST


@pytest.mark.parametrize(("sessions", "cost"), [(1, 0.0), (2, 0.02), (8, 0.02)])
def test_a_message_of_its_own_costs_a_pass_of_others_who_are_in_runs(sessions: int, cost: float) -> None:
    """So only a session by itself waits round by round for copies that may come."""
    length = RunLength()
    assert answered(length, 0.00075, 0.02, rounds=8, sessions=sessions) == 2
    assert length.apart() == pytest.approx(cost, rel=0.03)
    assert length.plain(foreseen=True) == (1 if sessions == 1 else 2)


def test_where_others_have_candidates_too_a_message_costs_them_nothing() -> None:
    """Else nobody would begin, though all together gain."""
    length = RunLength()
    assert answered(length, 0.00175, 0.02, rounds=8, sessions=8) == 4
    charged = [length.apart()]
    for _ in range(400):
        length.answered(0.03, Timing(1, 0.0, 0.02, 0.0, 8, 32), 1, candidates=3)
        charged.append(length.apart())
    assert charged == sorted(charged, reverse=True)
    assert charged[0] > 0.019
    assert charged[-1] < 0.001
    assert length.plain() == 4


def judged(length: RunLength, message: float, drafting: float, pass_: float, rounds: int = 1) -> int:
    for _ in range(64):
        told = Timing(rounds, 0.0, rounds * pass_, 0.0, rounds, rounds)
        length.judged(rounds * pass_ + message, Timing(2 * rounds, 0.0, rounds * drafting), told, rounds)
    return length.drafted()


def test_rounds_with_candidates_of_a_drafter_beside_go_on_by_themselves_as_their_message_calls_for() -> None:
    length = RunLength()
    assert length.drafted() == 1, "nothing is known"
    assert judged(length, 0.0018, 0.004, 0.016) == 4
    assert length.plain() == 1, "of plain rounds still nothing"
    assert judged(RunLength(), 0.0018, 0.004, 0.016, rounds=3) == 4, "however many rounds that was found out by"
    assert judged(RunLength(), 0.0004, 0.004, 0.016) == 1
    assert judged(RunLength(), 1.0, BURST_SECONDS, BURST_SECONDS) == 1
    assert RunLength(5).drafted() == 5


def test_of_rounds_that_one_message_brought_the_average_is_put_down() -> None:
    together, singly = LiveCosts(), LiveCosts()
    drafting, timing = Timing(2, 0.0, 0.004, 0.0002, 2, 2), Timing(1, 0.001, 0.016, 0.001, 1, 3)
    for costs, rounds in ((together, 4), (singly, 1)):
        watch = RoundWatch(costs)
        watch.verified(0.1, timing, 0)  # a prefill
        for _ in range(64):
            times = [replace(one, **{name: rounds * getattr(one, name) for name in SUMS}) for one in (drafting, timing)]
            watch.judged(rounds * (timing.whole + 0.0005), *times, [2] * rounds)
        costs.digest()
    one, other = together.profile(), singly.profile()
    assert one.fixed == pytest.approx(other.fixed, rel=1e-6)
    assert one.draft == pytest.approx(other.draft, rel=1e-6)
    assert one.verify == pytest.approx(other.verify, rel=1e-6)


SUMS = ("forwards", "queue", "forward", "rules", "sessions", "tokens")


def test_blocks_say_nothing_of_what_a_message_without_candidates_takes() -> None:
    costs = LiveCosts()
    watch = RoundWatch(costs)
    for candidates, seconds in [(0, 0.0201)] * 9 + [(3, 0.06)] * 90:
        watch.verified(seconds, Timing(1, 0.0, 0.02, 0.0, 1, candidates + 1), candidates)
    assert costs.runs.plain() == 1


def test_candidates_have_to_earn_what_their_message_costs_the_others() -> None:
    costs, alone = LiveCosts(), LiveCosts()
    for one, sessions in ((costs, 8), (alone, 1)):
        watch = RoundWatch(one)
        for _ in range(160):
            watch.verified(0.084, Timing(4, 0.0, 0.08, 0.0, 4 * sessions, 4 * sessions), 0, rounds=4)
    assert costs.runs.apart() == pytest.approx(0.02, rel=0.01)
    for tables in ("verify", "copied"):
        here, there = (getattr(now(one), tables) for one in (costs, alone))
        assert here[0] == pytest.approx(there[0], rel=0.01)
        assert here[1] > there[1] + 0.015


def told_of(served: str, drafts: str) -> CostProfile:
    """What eight sessions have shown whose verifier drafts by `served`, and whose drafter serves `drafts`."""
    costs = LiveCosts()
    costs.told(replace(INFO, drafts=served), replace(INFO, weights_fingerprint=drafts))
    watch = RoundWatch(costs)
    for _ in range(160):
        watch.verified(0.084, Timing(4, 0.0, 0.08, 0.0, 32, 32), 0, rounds=4)
    return now(costs)


def test_a_drafter_beside_pays_for_no_message_and_a_copy_still_does() -> None:
    """Rounds it drafts for are taken together too: nobody misses a pass of the others, unless he copies alone."""
    beside, other, nobody = told_of("pq", "pq"), told_of("pq", "rs"), told_of("", "")
    assert other.verify == nobody.verify, "another drafter than the one that is asked is not beside it, nor is none"
    for candidates in (1, 2, 4):
        assert beside.verify[candidates] == pytest.approx(other.verify[candidates] - 0.02, rel=0.01)
    assert beside.verify[0] == other.verify[0]
    assert beside.copied == other.copied


def test_a_stated_length_stands() -> None:
    assert answered(RunLength(5), 0.0, 0.01) == 5


def test_a_block_that_begins_a_run_is_not_charged_for_a_message() -> None:
    costs = LiveCosts()
    watch = RoundWatch(costs)
    for _ in range(160):
        watch.verified(0.084, Timing(4, 0.0, 0.08, 0.0, 32, 32), 0, rounds=4)
        watch.verified(0.084, Timing(4, 0.0, 0.08, 0.0, 32, 36), 4, rounds=4)
    assert costs.runs.apart() == pytest.approx(0.02, rel=0.01), "both are in runs"
    added = list[Observation]()
    costs.add = added.append  # type: ignore[method-assign]
    watch.verified(0.08, Timing(4, 0.0, 0.08, 0.0, 8, 18), 10, rounds=4)
    assert [(seen.candidates, seen.rows) for seen in added] == [(0, 4)], (
        "no pass of eleven rows and more took so little"
    )
    profile = now(costs)
    assert profile.copied[0] == profile.joined[0]
    assert profile.copied[1] == pytest.approx(profile.joined[1] + 0.02, rel=0.01)
    assert profile.rounds[0] == pytest.approx(0.021, rel=0.02)


def test_a_round_costs_what_its_share_of_the_run_does() -> None:
    costs = LiveCosts()
    watch = RoundWatch(costs)
    watch.verified(1.0, Timing(), 0)
    for _ in range(100):
        watch.verified(0.5, Timing(4, 0.1, 0.35, 0.05, 4, 4), 0, 4)
    assert now(costs).rounds[0] == pytest.approx(0.1, rel=0.01)
