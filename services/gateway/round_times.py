"""Where the time of a generation's rounds goes, as its gateway sees it: one collector a request."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from types import TracebackType
from typing import Any, Literal

from adasd.core.messages import Timing
from services.gateway.rounds import Rounds

TimedStep = Literal["create", "draft", "verify", "commit"]


@dataclass(slots=True)
class StepTimes:
    """One step. begin: seconds since the request came. told: the replica's own account. bytes: written to the store."""

    step: TimedStep
    begin: float
    seconds: float = 0.0
    told: Timing | None = None
    bytes: int | None = None

    @property
    def network(self) -> float:
        """Seconds that the replica does not account for."""
        told = self.told or Timing()
        return max(0.0, self.seconds - told.whole + told.ahead)

    def as_dict(self) -> dict[str, Any]:
        figures = {"step": self.step, "begin": self.begin, "seconds": self.seconds}
        figures |= {} if self.bytes is None else {"bytes": self.bytes}
        return figures | ({} if self.told is None else asdict(self.told))


@dataclass(slots=True)
class OneRound:
    """begin: seconds since the request came. steps: in the order they ended."""

    begin: float
    steps: list[StepTimes] = field(default_factory=list)


@dataclass(slots=True)
class _Stopwatch(AbstractContextManager[StepTimes]):
    """now: seconds since the request came. steps: of the same round, to which this one is added if it succeeds."""

    now: Callable[[], float]
    steps: list[StepTimes]
    step: StepTimes

    def __enter__(self) -> StepTimes:
        return self.step

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.step.seconds = self.now() - self.step.begin
            self.steps.append(self.step)


class RoundTimes:
    """The steps of rounds by their number: the next one is under way before the last one is told."""

    def __init__(self, arrived: float) -> None:
        """arrived: when the request came, as `time.perf_counter` counts."""
        self.arrived = arrived
        self._first: OneRound | None = OneRound(0.0)  # until the round that it becomes begins
        self._under_way: dict[int, OneRound] = {}
        self.told = self._first

    def answering(self) -> AbstractContextManager[None]:
        """Around all of it."""
        return nullcontext()

    def anew(self, replayed: bool) -> None:
        """Rounds begin here, for the first time or again: what was under way before comes to nothing.

        replayed: text that was committed before has been shown first.
        """
        self._under_way.clear()
        if replayed or self._first is None:
            self._first = OneRound(self._now())

    def committed(self, rounds: Rounds) -> None:
        """Rounds, which count as one here, have come to their end and are told."""
        self.told = self._under_way.pop(rounds.number)

    def step(self, name: TimedStep, number: int | None = None, rounds: int = 1) -> AbstractContextManager[StepTimes]:
        """Time a step that succeeds. number: of its round; None before there is one. rounds: asked for at once."""
        return _Stopwatch(self._now, self._of(number).steps, StepTimes(name, self._now()))

    def parted(self, number: int, step: StepTimes, drafting: Timing) -> None:
        """A step of this round has ended that began with drafting: as two of them."""
        self._of(number).steps.insert(-1, StepTimes("draft", step.begin, drafting.whole, drafting))
        step.begin += drafting.whole
        step.seconds -= drafting.whole

    def as_dict(self) -> dict[str, Any]:
        """The round that is told, for the client. Its `end` is now; by then the next one may long have begun."""
        return {"begin": self.told.begin, "end": self._now(), "steps": [step.as_dict() for step in self.told.steps]}

    def _of(self, number: int | None) -> OneRound:
        if number is None:
            assert self._first is not None, "what comes before all rounds"
            return self._first
        if number not in self._under_way:
            self._under_way[number], self._first = self._first or OneRound(self._now()), None
        return self._under_way[number]

    def _now(self) -> float:
        return time.perf_counter() - self.arrived
