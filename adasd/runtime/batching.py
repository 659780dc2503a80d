"""Continuous batching: at every step whatever is waiting goes into one ragged forward.

Draft steps, blocks to verify and pieces of prompts meet in a batch; jobs join and leave between steps. A long prompt is
read in pieces, small ones while others run, so that running streams keep their pace; several long ones share alike.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from adasd.core.backend import Kernels
from adasd.core.drafting import Drafted
from adasd.core.draws import CounterDraws
from adasd.core.errors import InvalidRequest, ServiceUnavailable, SessionNotFound
from adasd.runtime.base import CausalRuntime, Following, Segment
from adasd.runtime.passes import Job, Pass, Taken
from adasd.runtime.sessions import Sessions


class Rows(Protocol):
    """Logits of some positions, [rows, width]: numpy or torch."""

    def __getitem__(self, row: int, /) -> Any: ...
    def __len__(self) -> int: ...


L = TypeVar("L", bound=Rows)


@dataclass(frozen=True, slots=True)
class Schedule:
    """chunk: tokens a step reads of prompts when nothing else runs. running_chunk: beside running streams.

    running: the most tokens a stream reads at a step and still counts as running. idle_sessions: whose KV is kept when
    their stream has ended, for others that begin alike.
    """

    chunk: int = 256
    running_chunk: int = 64
    running: int = 32
    idle_sessions: int = 32

    def __post_init__(self) -> None:
        for name in ("chunk", "running_chunk", "running"):
            if getattr(self, name) < 1:
                raise InvalidRequest(f"{name} must be at least 1, got {getattr(self, name)}", name)
        if self.idle_sessions < 0:
            raise InvalidRequest(f"idle_sessions must not be negative, got {self.idle_sessions}", "idle_sessions")


def _here(job: Job[Any], since: float) -> bool:
    """All passes of all jobs are for one model."""
    return False


@dataclass(slots=True)
class _Turn:
    """A job's part of one step. rest: tokens its pass has yet to read, of which `take` now."""

    job: Job[Any]
    wanted: Pass
    base: int
    take: int

    @property
    def rest(self) -> int:
        return len(self.wanted.ids) - self.base

    @property
    def rows(self) -> int:
        return self.wanted.rows if self.take == self.rest else 0

    def segment(self) -> Segment:
        return Segment(self.wanted.session, self.base, self.wanted.ids[self.base : self.base + self.take], self.rows)


class Batcher(Generic[L]):
    """Steps jobs together. Owned by the thread that owns the runtime. passes: so far. tokens: of the last one.
    gathers: whether the last step was one that sessions are kept together for.

    elsewhere: takes a job whose next pass is not for this model, since when it waits, and whether it is so.
    """

    def __init__(
        self,
        runtime: CausalRuntime[L],
        kernels: Kernels[L, CounterDraws],
        sessions: Sessions,
        schedule: Schedule,
    ) -> None:
        self._runtime, self._kernels, self._sessions, self._schedule = runtime, kernels, sessions, schedule
        self._following = runtime if isinstance(runtime, Following) else None
        self._jobs: list[Job[Any]] = []
        self._waiting_since: dict[Job[Any], float] = {}
        self.passes = self.tokens = 0
        self.gathers = True
        self.elsewhere: Callable[[Job[Any], float], bool] = _here

    @property
    def jobs(self) -> int:
        """Jobs in hand."""
        return len(self._jobs)

    def add(self, job: Job[Any], waited: float = 0.0) -> None:
        """Take a job in hand; it takes part from the next step on. waited: seconds, for the device, so far."""
        since = time.perf_counter() - waited
        if job.advance(None):
            self.take(job, since)

    def take(self, job: Job[Any], since: float) -> None:
        """One that has begun, and waits for a pass since then."""
        self._jobs.append(job)
        self._waiting_since[job] = since

    def step(self) -> int:
        """One forward for all jobs, as far as the schedule lets them; how many took part."""
        self._drop_cancelled()
        turns = self._admitted(self._planned())
        if not turns:
            return 0
        began = time.perf_counter()
        logits = self._forward(turns)
        self.passes += 1
        ended, tokens = time.perf_counter(), sum(turn.take for turn in turns)
        self.tokens = tokens
        for turn in turns:
            turn.job.count(began - self._waiting_since[turn.job], ended - began, len(turns), tokens)
            self._waiting_since[turn.job] = ended
        self._deliver(turns, logits)
        return len(turns)

    def disturb(self, waiting: bool) -> None:
        """Somebody waits to be added, or nobody does; from any thread. What is under way ends with its next pass."""
        if self._following is not None:
            self._following.disturb(waiting)

    def fail(self, error: Exception) -> None:
        """End every job with this."""
        for job in list(self._jobs):
            self._end(job, error)

    def _drop_cancelled(self) -> None:
        for job in [job for job in self._jobs if job.cancelled()]:
            self._end(job, ServiceUnavailable("nobody waits for this any more"))

    def _planned(self) -> list[_Turn]:
        """Every job's turn; two of one session come one after the other."""
        turns: dict[bytes, _Turn] = {}
        for job in self._jobs:
            assert job.next is not None
            if job.next.session not in turns:
                base = self._sessions.shared(job.next.session, job.next.ids, job.next.rows)
                turns[job.next.session] = _Turn(job, job.next, base, len(job.next.ids) - base)
        return self._portioned(list(turns.values()))

    def _portioned(self, turns: list[_Turn]) -> list[_Turn]:
        """Running streams read all they want; the others share what the schedule leaves them, but for rows that are
        wanted, which one pass must give: it would begin with them again and again.
        """
        reading = [turn for turn in turns if turn.rest > self._schedule.running]
        alone = len(reading) == len(turns)
        portion = (self._schedule.chunk if alone else self._schedule.running_chunk) // max(1, len(reading))
        for turn in reading:
            turn.take = min(turn.rest, max(portion, self._schedule.running, turn.wanted.rows))
        return turns

    def _admitted(self, turns: Sequence[_Turn]) -> list[_Turn]:
        """Those for whose KV there is room; the others' jobs end with Overloaded."""
        running, admitted = {turn.wanted.session for turn in turns}, []
        for turn in turns:
            try:
                self._sessions.reserve(turn.wanted.session, turn.base + turn.take, running)
                admitted.append(turn)
            except Exception as error:
                if not turn.job.advance(error):
                    self._forget(turn.job)
        return admitted

    def _forward(self, turns: Sequence[_Turn]) -> list[L | Exception]:
        """Logits of every turn. What fails together is tried one by one, so that a job fails by its own fault only."""
        try:
            logits = list(self._runtime.forward([turn.segment() for turn in turns]))
        except Exception as error:
            return [error] if len(turns) == 1 else [one for turn in turns for one in self._forward([turn])]
        for turn in turns:
            self._sessions.read(turn.wanted.session, turn.wanted.ids[turn.base : turn.base + turn.take])
        return [*logits]

    def _deliver(self, turns: Sequence[_Turn], logits: Sequence[L | Exception]) -> None:
        for turn, outcome in self._outcomes(turns, logits):
            job, session = turn.job, turn.wanted.session
            if isinstance(outcome, Exception):
                self._sessions.distrust(session)  # KV behind a failed pass, or logits that are no numbers
                if isinstance(outcome, SessionNotFound) and turn.base > 0:
                    continue  # the runtime let go of the KV; all ids are known here, so they are read again
            if turn.take == turn.rest or isinstance(outcome, Exception):
                job.spent(time.perf_counter() - self._waiting_since[job])  # by the kernels; its own it counts itself
                going_on = job.advance(outcome)
                self._waiting_since[job] = now = time.perf_counter()
                if not going_on or self.elsewhere(job, now):
                    self._forget(job)

    def _outcomes(self, turns: Sequence[_Turn], logits: Sequence[L | Exception]) -> Iterator[tuple[_Turn, Any]]:
        """What came of every turn: rows as its side wants them, None where it wants none, or an error."""
        if (whole := self._followed(turns, logits)) is not None:
            yield turns[0], whole
            return
        good: dict[str, list[tuple[_Turn, Any]]] = {"draft": [], "target": []}
        for turn, rows in zip(turns, logits, strict=True):
            if isinstance(rows, Exception):
                yield turn, rows
            elif turn.rows == 0:
                yield turn, None
            else:
                good[turn.wanted.side].append((turn, rows[0] if turn.wanted.side == "draft" else rows))
        for side, make in (("draft", self._kernels.propose_batch), ("target", self._kernels.target_batch)):
            if given := good[side]:
                wanted = [turn.wanted for turn, _ in given]
                samplings, edits = [one.sampling for one in wanted], [one.edits for one in wanted]
                made = make([rows for _, rows in given], samplings, edits)
                yield from zip((turn for turn, _ in given), made, strict=True)

    def _followed(self, turns: Sequence[_Turn], logits: Sequence[L | Exception]) -> Drafted | Taken | None:
        """More than what a pass is for at least, where its job is the only one in hand."""
        (turn, rows), wanted = (turns[0], logits[0]), turns[0].wanted
        alone = len(self._jobs) == 1 and (wanted.block or wanted.run) is not None and turn.rows == 1
        if self._following is None or not alone or isinstance(rows, Exception):
            return None
        found = self._following.follow(wanted, rows)
        if found is None:
            return None
        passes = len(found.read)
        self._sessions.read(wanted.session, found.read)
        self.passes += passes
        for _ in range(passes):
            turn.job.count(0.0, found.seconds / passes, 1, 1)
        self._waiting_since[turn.job] += found.seconds  # the rest of the time is spent on rules
        return found.outcome

    def _end(self, job: Job[Any], error: Exception) -> None:
        job.finish(error)
        self._forget(job)

    def _forget(self, job: Job[Any]) -> None:
        self._jobs.remove(job)
        del self._waiting_since[job]
