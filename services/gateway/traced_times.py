"""An answer in its trace: what its rounds add up to, and some of them one by one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from services.gateway.round_times import RoundTimes, StepTimes, TimedStep
from services.gateway.rounds import Rounds
from services.gateway.sessions import Kind, Session
from services.gateway.traces import script_call
from services.tracing import NO_SPAN, TRACEPARENT, Attributes, Span, Tracing, figures, shown

_OPERATIONS: Mapping[Kind, str] = {"chat": "chat", "text": "text_completion"}


class TracedTimes(RoundTimes):
    """The stopwatch of an answer, whose steps are spans too."""

    def __init__(self, tracing: Tracing, session: Session, arrived: float) -> None:
        super().__init__(arrived)
        self._tracing = tracing
        self._session = session
        self._answer: Span = NO_SPAN
        self._rounds: dict[int, Span] = {}  # under way, of those that are shown, by number
        self._begun: int | None = None  # number of the first round on this stream
        self._totals: dict[str, float] = defaultdict(int)

    @contextmanager
    def answering(self) -> Iterator[None]:
        """A session that is taken up again goes on in the trace of the request that began it; the two are linked."""
        now, began, request = self._tracing.traceparent, self._session.traceparent, self._tracing.here
        parent = {TRACEPARENT: began} if began else None
        operation = _OPERATIONS[self._session.presentation.kind]
        name = f"{operation} {self._session.presentation.model}"
        with self._tracing.span(name, attributes=_asked(self._session, operation), parent=parent) as self._answer:
            if began and now and began != now:
                self._answer.link(now)
                request.link(began)
            try:
                yield
            except BaseException as error:
                self._end_all(error)
                raise
            finally:
                self._end_all(None)
                self._answer.note(self._totals)

    def _end_all(self, error: BaseException | None) -> None:
        """Rounds that were under way and come to nothing."""
        while self._rounds:
            self._rounds.popitem()[1].end(error)

    def anew(self, replayed: bool) -> None:
        super().anew(replayed)
        self._end_all(None)

    @contextmanager
    def step(self, name: TimedStep, number: int | None = None, rounds: int = 1) -> Iterator[StepTimes]:
        with self._span(name, number, rounds) as span:
            with super().step(name, number, rounds) as step:
                yield step
            span.note(_figures(step))

    def committed(self, rounds: Rounds) -> None:
        super().committed(rounds)
        self._add(rounds)
        span = self._rounds.pop(rounds.number, NO_SPAN)
        span.note(_outcome(rounds))
        span.end()
        if rounds.state.finish_reason is not None:
            self._answer.note({"gen_ai.response.finish_reasons": (rounds.state.finish_reason,)})

    def _span(self, name: TimedStep, number: int | None, rounds: int) -> Span:
        if number is None:
            return self._tracing.span(*script_call(name))
        if self._begun is None:
            self._begun = number
        if number not in self._rounds:
            if name == "commit" or not shown(number, number - self._begun, rounds):
                return NO_SPAN
            kind = "prefill" if number == self._begun else "round"
            self._rounds[number] = self._tracing.span(kind, parent=self._answer)
        if name == "commit":
            return self._tracing.span(*script_call(name), self._rounds[number])
        return self._tracing.span(name, parent=self._rounds[number])

    def _add(self, rounds: Rounds) -> None:
        if rounds.number == self._begun:
            self._answer.note({"adasd.first_round_seconds": self._now()})
        totals = self._totals
        totals["adasd.rounds"] += rounds.count
        totals["adasd.candidates"] += rounds.drafted
        totals["adasd.accepted"] += rounds.accepted
        totals["gen_ai.usage.output_tokens"] += len(rounds.tokens)
        for each in self.told.steps:
            totals[f"adasd.{each.step}_seconds"] += each.seconds
            if each.told is not None:
                totals["adasd.network_seconds"] += each.network


def _asked(session: Session, operation: str) -> Attributes:
    """In the words of OpenTelemetry's conventions for generative AI."""
    generation, presentation = session.generation, session.presentation
    sampling = generation.sampling
    return {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": "adasd",
        "gen_ai.request.model": presentation.model,
        "gen_ai.response.id": presentation.answer,
        "gen_ai.request.max_tokens": generation.max_tokens,
        "gen_ai.request.temperature": sampling.temperature,
        "gen_ai.request.top_p": sampling.top_p,
        "gen_ai.usage.input_tokens": len(generation.prompt),
        "adasd.choice": presentation.index,
        "adasd.stopping": session.rules.stopping,
        "adasd.acceptance": session.rules.acceptance,
    }


def _outcome(rounds: Rounds) -> Attributes:
    return {
        "adasd.round": rounds.number,
        "adasd.decision": rounds.each[0].plan.decision,
        "adasd.candidates": rounds.drafted,
        "adasd.accepted": rounds.accepted,
        "adasd.tokens": len(rounds.tokens),
    }


def _figures(step: StepTimes) -> Attributes:
    if step.told is None:
        return {}
    return {**figures(step.told), "adasd.network_seconds": step.network}
