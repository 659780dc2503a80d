"""Rounds begun before they are asked for.

Between a verdict and its session's next question lie the way to the gateway and back and what that does meanwhile; the
model would stand still for it. Where the next round will hardly bring candidates, its question is known with the
verdict: the last one, a token on. So it is begun at once. If another question comes, or none, what came of it is
dropped and its KV rolled back like that of any rejected candidate. A round is a pure function of its question, so no
text depends on this.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from adasd.core.context import ContextHash
from adasd.core.messages import ContextDelta, Timing, VerifyRequest
from adasd.core.verdicts import Verdict
from adasd.runtime.engine import Engine
from adasd.runtime.jobs import is_last
from adasd.runtime.passes import Planned

MEMORY = 16
"""Rounds that a habit remembers."""

LEAST = 1e-9
"""Seconds that a round was ahead: that it was shows in this not being 0."""

Answer = tuple[Verdict, Timing]


@dataclass(frozen=True, slots=True)
class Foreseen:
    """The question after a plain round or run, if it brings no candidates either. hash: of the context it names."""

    question: VerifyRequest
    hash: ContextHash

    @classmethod
    def after(cls, question: VerifyRequest, verdict: Verdict, hash_: ContextHash) -> Foreseen:
        """hash_: of the context that follows from the verdict."""
        told, base = question.context, question.context.base + len(verdict.tokens)
        delta = ContextDelta(told.session, base, told.prompt_length, told.base, list(verdict.tokens), hash_.digest)
        return cls(replace(question, context=delta, round_number=question.round_number + verdict.rounds), hash_)

    def asked_by(self, question: VerifyRequest) -> bool:
        """Whether this is the question. By which state candidates would be judged matters only where there are some;
        of a longer run than is asked for the gateway takes what it wants.
        """
        here = replace(
            self.question,
            state=question.state,
            next_round=question.next_round,
            rounds=question.rounds,
            expected_acceptance=question.expected_acceptance,
        )
        return not len(question.draft) and here == question


@dataclass(slots=True)
class Habit:
    """misses: the share of plain rounds whose next one was not the foreseen one. seconds: until that was asked for."""

    misses: float = 0.5
    seconds: float = 0.0

    def hit(self, seconds: float) -> None:
        self.misses -= self.misses / MEMORY
        self.seconds += (seconds - self.seconds) / MEMORY if self.seconds else seconds

    def missed(self) -> None:
        self.misses += (1.0 - self.misses) / MEMORY

    def pays(self, pass_seconds: float) -> bool:
        """Whether to begin a round: what is won is the wait for its question, what may be lost the rest of a pass."""
        return self.misses * pass_seconds < self.seconds


class Begun:
    """A round under way. It ends on the device thread, is asked for on the event loop, in whichever order."""

    def __init__(self, foreseen: Foreseen) -> None:
        self.foreseen, self.question = foreseen, foreseen.question
        self.dropped = False
        self._lock = threading.Lock()
        self._asked = self._ended = 0.0
        self._outcome: tuple[Verdict | BaseException, Timing] | None = None
        self._answer: asyncio.Future[Answer | None] | None = None

    def claim(self, question: VerifyRequest) -> asyncio.Future[Answer | None]:
        """Its question has come, with the latest hint of what follows. Answered by None if the round has failed: then
        the question is to be answered like any other.
        """
        with self._lock:
            self.question, self._asked = question, time.perf_counter()
            self._answer = asyncio.get_running_loop().create_future()
            if self._outcome is not None:
                self._answer.set_result(self.told())
            return self._answer

    def ended(self, result: Verdict | BaseException, timing: Timing) -> asyncio.Future[Answer | None] | None:
        """Who waits for it, if it has been asked for."""
        with self._lock:
            self._outcome, self._ended = (result, timing), time.perf_counter()
            return self._answer

    def told(self) -> Answer | None:
        """What to answer, once it has ended and was asked for."""
        assert self._outcome is not None
        result, timing = self._outcome
        if isinstance(result, BaseException):
            return None
        waited = max(0.0, self._ended - self._asked)
        return result, replace(timing, ahead=max(LEAST, timing.whole - waited))


class InTurn:
    """One stream's questions, each begun when it is asked. cancelled: whether the stream has ended."""

    def __init__(self, engine: Engine, cancelled: Callable[[], bool]) -> None:
        self._engine, self._cancelled = engine, cancelled

    async def ask(self, question: VerifyRequest) -> Answer:
        """The verdict, and where the time went. Raises what `Engine.run` raises."""
        return await self._engine.run(
            lambda replica: replica.verify_steps(question),
            self._cancelled,
            last=lambda verdict: is_last(question, verdict, self._engine.eos_ids),
        )

    async def planned(self, question: VerifyRequest) -> tuple[Planned, Timing]:
        """Rounds as the question's plan and course have them, and where the time of judging went. Raises InvalidDraft
        and what `Engine.run` raises.
        """
        return await self._engine.run(
            lambda replica: replica.planned_steps(question),
            self._cancelled,
            last=lambda planned: self._over(question, planned),
        )

    def _over(self, question: VerifyRequest, planned: Planned) -> bool:
        course = question.course
        reached = course is not None and question.context.base + planned.tokens >= course.limit
        return reached or is_last(question, planned.rounds[-1].verdict, self._engine.eos_ids)

    def close(self) -> None:
        """The stream has ended."""


class RunAhead(InTurn):
    """One stream's questions, and the round begun before the next one.

    common: the habit of all streams, with which this one begins. cancelled: whether the stream has ended. told: whether
    a round begun was asked for.
    """

    def __init__(
        self, engine: Engine, common: Habit, cancelled: Callable[[], bool], told: Callable[[bool], None]
    ) -> None:
        super().__init__(engine, cancelled)
        self._told = told
        self._common, self._habit = common, replace(common)
        self._foreseen: Foreseen | None = None
        self._answered_at = 0.0
        self._begun: Begun | None = None

    async def ask(self, question: VerifyRequest) -> Answer:
        """The verdict, and where the time went. Raises what `Engine.run` raises."""
        begun, self._begun = self._begun, None
        hit = self._learn(question)
        if begun is not None:
            self._told(hit)
            if hit and (answer := await self._claimed(begun, question)) is not None:
                return answer
            begun.dropped = True
        return await self._engine.run(
            lambda replica: replica.verify_steps(question),
            self._cancelled,
            lambda replica, verdict, timing: self._go_on(
                question, verdict, timing, replica.context_hash(question.context.session)
            ),
            lambda verdict: is_last(question, verdict, self._engine.eos_ids),
        )

    async def planned(self, question: VerifyRequest) -> tuple[Planned, Timing]:
        begun, self._begun = self._begun, None
        self._learn(question)
        if begun is not None:
            self._told(False)
            begun.dropped = True
        return await super().planned(question)

    def close(self) -> None:
        if self._begun is not None:
            self._told(False)

    def _learn(self, question: VerifyRequest) -> bool:
        """Whether the question is the foreseen one."""
        foreseen, self._foreseen = self._foreseen, None
        if foreseen is None:
            return False
        hit = foreseen.asked_by(question)
        for habit in (self._habit, self._common):
            habit.hit(time.perf_counter() - self._answered_at) if hit else habit.missed()
        return hit

    async def _claimed(self, begun: Begun, question: VerifyRequest) -> Answer | None:
        answer = begun.claim(question)
        if not answer.done():
            return await answer
        if (told := answer.result()) is not None:
            self._go_on(question, *told, begun.foreseen.hash.after(told[0].tokens))
        return told

    def _go_on(self, question: VerifyRequest, verdict: Verdict, timing: Timing, hash_: ContextHash) -> None:
        """The question is answered; on the device thread, unless it is answered at once. hash_: of the context now."""
        if len(question.draft) or is_last(question, verdict, self._engine.eos_ids) or self._cancelled():
            return
        self._foreseen, self._answered_at = Foreseen.after(question, verdict, hash_), time.perf_counter()
        if question.next_round == "plain" or self._habit.pays(timing.forward / max(1, timing.forwards)):
            self._begin(self._foreseen)

    def _begin(self, foreseen: Foreseen) -> None:
        self._begun = begun = Begun(foreseen)

        def ended(result: Verdict | BaseException, timing: Timing) -> None:
            answer = begun.ended(result, timing)
            if answer is None:
                if not begun.dropped and isinstance(result, Verdict):
                    self._engine.expect()
                return
            told = begun.told()
            last = told is not None and is_last(begun.question, told[0], self._engine.eos_ids)
            self._engine.answer(answer, told, last)
            if told is not None:
                self._go_on(begun.question, *told, foreseen.hash.after(told[0].tokens))

        self._engine.submit(
            lambda replica: replica.verify_steps(foreseen.question), ended, lambda: begun.dropped or self._cancelled()
        )
