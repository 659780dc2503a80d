"""Where the time of a generation's rounds goes, as its gateway sees it: one collector a request."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from adasd.core.decoding import Round
from adasd.core.messages import Timing

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
        return max(0.0, self.seconds - told.queue - told.forward - told.rules)

    def as_dict(self) -> dict[str, Any]:
        figures = {"step": self.step, "begin": self.begin, "seconds": self.seconds}
        figures |= {} if self.bytes is None else {"bytes": self.bytes}
        return figures | ({} if self.told is None else asdict(self.told))


@dataclass(slots=True)
class RoundTimes:
    """The steps of the current round. arrived: when the request came, as `time.perf_counter` counts."""

    arrived: float
    begin: float = 0.0
    steps: list[StepTimes] = field(default_factory=list)

    def answering(self) -> AbstractContextManager[None]:
        """Around all of it."""
        return nullcontext()

    def committed(self, step: Round) -> None:
        """The round has come to its end, and its steps are those since the one before."""

    def begin_round(self) -> None:
        """The round before has been shown."""
        self.begin, self.steps = self._now(), []

    @contextmanager
    def step(self, name: TimedStep) -> Iterator[StepTimes]:
        """Time a step of the round that succeeds."""
        step = StepTimes(name, self._now())
        yield step
        step.seconds = self._now() - step.begin
        self.steps.append(step)

    def as_dict(self) -> dict[str, Any]:
        """The round up to now, for the client: what it takes to show it lies between its end and the next begin."""
        return {"begin": self.begin, "end": self._now(), "steps": [step.as_dict() for step in self.steps]}

    def _now(self) -> float:
        return time.perf_counter() - self.arrived
