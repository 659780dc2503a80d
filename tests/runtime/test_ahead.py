"""Rounds begun before they are asked for: the same answers, whatever is asked and whenever."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from adasd.core.adaptive import AcceptanceState
from adasd.core.context import Context, ContextHash, context_hash
from adasd.core.errors import AdasdError, ContextLengthExceeded, SessionNotFound
from adasd.core.host import HostKernels
from adasd.core.messages import ContextDelta, NextRound, Timing, VerifyRequest
from adasd.core.rows import copied_block
from adasd.core.types import Draft, SamplingParams
from adasd.core.verdicts import Verdict
from adasd.runtime.ahead import Foreseen, Habit, RunAhead
from adasd.runtime.device import DeviceThread
from adasd.runtime.engine import Engine
from adasd.runtime.replica import Replica
from adasd.runtime.toy import ToyRuntime, ToySpec

VOCAB = 32
STATE = AcceptanceState().pack()
NOTHING = Draft()


def replica(**spec: Any) -> Replica[Any]:
    return Replica(ToyRuntime(ToySpec(seed=1, vocab=VOCAB, **{"eos_bias": -np.inf, **spec})), HostKernels(None))


def block(candidates: int, first: int = 5) -> Draft:
    return copied_block([(first + 7 * place) % VOCAB for place in range(candidates)])


@dataclass
class Stream:
    """A gateway's end: what it has committed, and how much of that it has sent."""

    session: bytes = bytes(16)
    sampling: SamplingParams = field(default_factory=lambda: SamplingParams(seed=7))
    context: Context = field(default_factory=lambda: Context([3, 1, 4, 1, 5]))
    sent: int = 0
    rounds: int = 0

    def question(self, draft: Draft = NOTHING, next_round: NextRound = "plain", rounds: int = 1) -> VerifyRequest:
        context, start = self.context, self.sent
        ids = context.ids[start:]
        delta = ContextDelta(self.session, context.base, context.prompt_length, start, ids, context.hash)
        self.sent = context.base
        asked = VerifyRequest(delta, self.sampling, draft, "exact", STATE, self.rounds, None, next_round, rounds)
        self.rounds += 1
        return asked

    def alone(self, question: VerifyRequest, **spec: Any) -> Verdict:
        """The answer of a replica that knows nothing but this question."""
        context = replace(question.context, start=0, ids=self.context.ids)
        return replica(**spec).verify(replace(question, context=context))


class Ahead:
    """A stream's `RunAhead`, and what became of the rounds it began."""

    def __init__(self, engine: Engine, habit: Habit | None = None) -> None:
        self.outcomes: list[bool] = []
        self.ended = False
        self.inner = RunAhead(engine, habit or Habit(), lambda: self.ended, self.outcomes.append)

    async def ask(self, question: VerifyRequest) -> tuple[Verdict, Timing]:
        async with asyncio.timeout(10):
            return await self.inner.ask(question)


@contextmanager
def counted(held: Replica[Any]) -> Iterator[list[int]]:
    """Sessions in each of its passes."""
    passes, step = list[int](), held.batcher.step

    def stepped() -> int:
        passes.append(step())
        return passes[-1]

    held.batcher.step = stepped  # type: ignore[method-assign]
    yield passes


async def idle(held: Replica[Any], device: DeviceThread) -> None:
    """Until nothing is under way."""
    while await device.run(lambda: held.batcher.jobs):
        pass


def test_the_foreseen_question_is_the_one_a_gateway_would_ask() -> None:
    stream = Stream()
    asked, verdict = stream.question(), Verdict((9,), 0, "bonus")
    foreseen = Foreseen.after(asked, verdict, ContextHash().after([*stream.context.ids, 9]))
    stream.context.extend(verdict.tokens)
    question = stream.question(next_round="none")
    assert foreseen.asked_by(question)
    assert foreseen.asked_by(replace(question, state=b"whatever"))
    assert foreseen.asked_by(replace(question, rounds=2))
    other = Context([*stream.context.ids[:-1], 8])
    for changed in (
        replace(question, draft=block(2)),
        replace(question, round_number=7),
        replace(question, sampling=replace(stream.sampling, temperature=0.5)),
        replace(question, top_logprobs=3),
        replace(question, context=replace(question.context, ids=[8], hash=other.hash)),
        replace(question, context=replace(question.context, hash=bytes(16))),
    ):
        assert not foreseen.asked_by(changed)
    further = Foreseen.after(foreseen.question, Verdict((2, 6), 0, "bonus"), foreseen.hash.after((2, 6)))
    assert further.question.context.hash == context_hash([*stream.context.ids, 2, 6])
    assert further.question.round_number == foreseen.question.round_number + 2


@pytest.mark.parametrize("pause", [0.0, 0.03], ids=["asked for on its way", "asked for once it has ended"])
async def test_a_round_that_was_begun_is_the_round_that_is_asked_for(pause: float) -> None:
    held, stream = replica(delay_ms=10), Stream()
    async with DeviceThread() as device:
        ahead = Ahead(Engine(device, held, 8))
        with counted(held) as passes:
            for number in range(6):
                question = stream.question(next_round="none" if number == 5 else "plain")
                verdict, timing = await ahead.ask(question)
                assert verdict == stream.alone(question)
                assert (timing.ahead > 0) == (number > 0)
                assert timing.ahead <= timing.whole
                assert not pause or number == 0 or timing.ahead == timing.whole
                stream.context.extend(verdict.tokens)
                await asyncio.sleep(pause)
            await idle(held, device)
    assert ahead.outcomes == [True] * 5
    assert len(passes) == 6, "after the last one there is nothing to begin"


@pytest.mark.parametrize("pause", [0.0, 0.03], ids=["on its way", "ended"])
async def test_a_round_that_nobody_asks_for_is_dropped(pause: float) -> None:
    held, stream, candidates = replica(delay_ms=10), Stream(), block(3)
    async with DeviceThread() as device:
        ahead = Ahead(Engine(device, held, 8))
        for draft in (NOTHING, candidates, NOTHING, NOTHING, candidates):
            question = stream.question(draft)
            verdict, timing = await ahead.ask(question)
            assert verdict == stream.alone(question)
            stream.context.extend(verdict.tokens)
            await asyncio.sleep(pause)
        assert not timing.ahead
        await idle(held, device)
    assert ahead.outcomes == [False, True, False]


async def test_streams_that_differ_share_passes_and_get_what_they_would_alone() -> None:
    """Candidates at random, questions that come late, streams that end with a round begun."""
    held = replica(delay_ms=2)

    async def run(engine: Engine, number: int) -> list[bool]:
        dice = random.Random(number)
        stream = Stream(bytes([number]) * 16, SamplingParams(seed=number), Context([1 + number, 2, 3]))
        ahead = Ahead(engine)
        for _ in range(12):
            draft = block(3, number) if dice.random() < 0.3 else NOTHING
            rounds = 1 if len(draft) else dice.choice([1, 1, 2, 4])
            question = stream.question(draft, dice.choice(["plain", "unknown"]), rounds)
            verdict, _ = await ahead.ask(question)
            alone = stream.alone(question)
            common = min(len(verdict.tokens), len(alone.tokens))  # a run begun before may be of another length
            assert verdict.cut(common) == alone.cut(common)
            stream.context.extend(verdict.tokens)
            stream.rounds += verdict.rounds - 1
            await asyncio.sleep(dice.choice([0, 0, 0.005]))
        ahead.ended = True
        await device.run(held.release, stream.session)
        return ahead.outcomes

    async with DeviceThread() as device:
        engine = Engine(device, held, 16)
        outcomes = await asyncio.gather(*(run(engine, number) for number in range(6)))
        await idle(held, device)
        await asyncio.sleep(0.02)
    assert {True, False} <= {outcome for stream in outcomes for outcome in stream}
    assert len(held._sessions) == 0, "no session comes back by a round that was begun"


async def test_without_a_hint_rounds_are_begun_once_that_has_paid() -> None:
    """Questions take far longer than passes, so a miss costs little; five of six rounds were foreseen rightly."""
    held, stream, habit = replica(), Stream(), Habit()
    async with DeviceThread() as device:
        ahead = Ahead(Engine(device, held, 8), habit)
        for number in range(24):
            draft = block(2) if number % 6 == 5 else NOTHING
            verdict, _ = await ahead.ask(stream.question(draft, "unknown"))
            stream.context.extend(verdict.tokens)
            await asyncio.sleep(0.01)
        assert ahead.outcomes.count(True) > 10
        assert False in ahead.outcomes
    assert 0.0 < habit.misses < 0.5
    assert habit.seconds >= 0.009


def test_beginning_a_round_pays_where_misses_cost_less_than_waiting() -> None:
    habit = Habit()
    assert not habit.pays(0.01), "nothing is known of the wait"
    for _ in range(64):
        habit.hit(0.002)
    assert habit.pays(0.03)
    habit.missed()
    habit.missed()
    assert not habit.pays(0.03)
    assert habit.pays(0.015)


@pytest.mark.parametrize("reason", ["the text ends by its length", "the text ends by EOS", "the stream has ended"])
async def test_nothing_is_begun_where_nothing_follows(reason: str) -> None:
    spec = {"eos_bias": 50.0} if reason.endswith("EOS") else {}
    held, stream = replica(**spec), Stream()
    async with DeviceThread() as device:
        ahead = Ahead(Engine(device, held, 8))
        ahead.ended = reason.startswith("the stream")
        question = stream.question(next_round="none" if reason.endswith("length") else "plain")
        with counted(held) as passes:
            if ahead.ended:
                with pytest.raises(AdasdError):
                    await ahead.ask(question)
            else:
                verdict, _ = await ahead.ask(question)
                assert (verdict.tokens == (0,)) == reason.endswith("EOS")
            await idle(held, device)
    assert len(passes) == 1


async def test_an_ignored_eos_ends_nothing() -> None:
    held, stream = replica(eos_bias=50.0), Stream(sampling=SamplingParams(seed=7, ignore_eos=True))
    async with DeviceThread() as device:
        ahead = Ahead(Engine(device, held, 8))
        verdict, _ = await ahead.ask(stream.question())
        assert verdict.tokens == (0,)
        stream.context.extend(verdict.tokens)
        await ahead.ask(stream.question())
    assert ahead.outcomes == [True]


async def test_a_begun_round_that_fails_is_answered_as_if_it_had_not_been_begun() -> None:
    held, stream = replica(context=6), Stream()
    async with DeviceThread() as device:
        ahead = Ahead(Engine(device, held, 8))
        for _ in range(2):
            verdict, _ = await ahead.ask(stream.question())
            stream.context.extend(verdict.tokens)
        with pytest.raises(ContextLengthExceeded):
            await ahead.ask(stream.question())


async def test_a_context_that_is_not_the_one_held_is_refused_all_the_same() -> None:
    held, stream = replica(), Stream()
    async with DeviceThread() as device:
        ahead = Ahead(Engine(device, held, 8))
        verdict, _ = await ahead.ask(stream.question())
        stream.context.extend(verdict.tokens)
        question = stream.question()
        with pytest.raises(SessionNotFound):
            await ahead.ask(replace(question, context=replace(question.context, hash=bytes(16))))
        again = replace(question, context=replace(question.context, start=0, ids=stream.context.ids))
        verdict, _ = await ahead.ask(again)
        assert verdict == stream.alone(question)


async def test_closing_the_device_leaves_nobody_waiting_for_a_begun_round() -> None:
    held, stream, device = replica(delay_ms=20), Stream(), DeviceThread()
    ahead = Ahead(Engine(device, held, 8))
    verdict, _ = await ahead.ask(stream.question())
    stream.context.extend(verdict.tokens)
    waiting = asyncio.create_task(ahead.ask(stream.question()))
    await asyncio.sleep(0)
    await device.close()
    (ended,) = await asyncio.gather(waiting, return_exceptions=True)
    assert isinstance(ended, tuple | AdasdError)
    with pytest.raises(AdasdError):
        await ahead.ask(stream.question())


@contextmanager
def expected(engine: Engine) -> Iterator[list[int]]:
    """One entry for each session that passes wait for."""
    sessions = list[int]()
    engine.expect = lambda: sessions.append(1)  # type: ignore[method-assign]
    yield sessions


@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize("ends", ["by its limit", "by EOS", "not yet"])
async def test_no_pass_waits_for_a_session_that_will_not_ask_again(begun: bool, ends: str) -> None:
    hint: NextRound = "plain" if begun else "unknown"
    held = replica(delay_ms=10, eos_bias=99.0 if ends == "by EOS" else -np.inf)
    stream = Stream(sampling=SamplingParams(seed=7, ignore_eos=ends != "by EOS"))
    async with DeviceThread() as device:
        engine = Engine(device, held, 8)
        with expected(engine) as sessions:
            ahead = Ahead(engine, Habit(misses=1.0))
            rounds = 1 if ends == "by EOS" else 3
            for number in range(rounds):
                last = ends == "by its limit" and number == rounds - 1
                verdict, _ = await ahead.ask(stream.question(next_round="none" if last else hint))
                stream.context.extend(verdict.tokens)
        assert ahead.outcomes == [True] * (rounds - 1) * begun
        assert len(sessions) == rounds - (ends != "not yet")
        ahead.ended = True
