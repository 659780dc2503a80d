"""What jobs and a batcher say to each other: the passes that a message's work needs, and the account of its time."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Generator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar, cast

from adasd.core.drafting import Block
from adasd.core.draws import CounterDraws
from adasd.core.messages import Judged, Timing
from adasd.core.processing import Edits
from adasd.core.types import SamplingParams
from adasd.runtime.options import Role

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Run:
    """Rounds without candidates that may be taken at once, `limit` at most, after `base` committed ids."""

    limit: int
    base: int
    draws: CounterDraws
    eos_ids: Collection[int]


class Taken(NamedTuple):
    """Tokens of such rounds, one each; at most one of them ends the text, the last."""

    tokens: Sequence[int]


@dataclass(frozen=True, slots=True)
class Pass:
    """Read `ids`, all of a session's, and make something of the logits of the last `rows`, as `edits` change them.

    side: a `Proposal` of one row, `TargetRows` of all of them; None comes of no rows. block, run: what it is for, where
    more of that may be had at once: of that tell a `Drafted` and a `Taken`.
    """

    session: bytes
    ids: Sequence[int]
    rows: int
    sampling: SamplingParams
    side: Role
    edits: Edits | None = None
    block: Block | None = None
    run: Run | None = None


Steps = Generator[Pass, Any, T]


class Planned(NamedTuple):
    """Rounds one after another, and where the time of drafting their blocks went."""

    rounds: tuple[Judged, ...]
    drafting: Timing = Timing()

    @property
    def tokens(self) -> int:
        """That stand, of all of them."""
        return sum(len(judged.verdict.tokens) for judged in self.rounds)


@dataclass(slots=True)
class _Account:
    """Of a job's time with one model, as `Timing` has it."""

    forwards: int = 0
    queue: float = 0.0
    forward: float = 0.0
    rules: float = 0.0
    sessions: int = 0
    tokens: int = 0

    def closed(self) -> Timing:
        return Timing(self.forwards, self.queue, self.forward, self.rules, self.sessions, self.tokens)


def never() -> bool:
    """The default of `cancelled`."""
    return False


class Job(Generic[T]):
    """One message in a replica's hands. done: told the result or the error, and where the time went.

    cancelled: asked before every pass whether anybody still waits.
    """

    def __init__(
        self,
        steps: Steps[T],
        done: Callable[[T | BaseException, Timing], None],
        cancelled: Callable[[], bool] = never,
    ) -> None:
        self._steps, self._done, self.cancelled = steps, done, cancelled
        self.next: Pass | None = None
        self._account, self._other = _Account(), _Account()

    def count(self, queue: float, forward: float, sessions: int, tokens: int) -> None:
        """It took part in a pass with so many sessions and tokens, its own included; seconds before it and in it."""
        account = self._account
        account.forwards += 1
        account.queue += queue
        account.forward += forward
        account.sessions += sessions
        account.tokens += tokens

    def spent(self, rules: float) -> None:
        """Seconds of sampling or judging."""
        self._account.rules += rules

    def advance(self, outcome: Any) -> bool:
        """Hand over what came of the last pass (None at first); whether the job wants another."""
        began = time.perf_counter()
        result: T | BaseException | None = None
        try:
            throwing = isinstance(outcome, BaseException)
            self.next = self._steps.throw(outcome) if throwing else self._steps.send(outcome)
        except StopIteration as end:
            result = end.value
        except Exception as error:
            result = error
        self.spent(time.perf_counter() - began)
        if result is None:
            return True
        self.finish(result)
        return False

    def finish(self, result: T | BaseException) -> None:
        """End the job with this."""
        self._steps.close()
        if isinstance(result, Planned):
            if self.next is not None and self.next.side == "draft":  # a block that nothing came of
                self.move()
            result = cast(T, result._replace(drafting=self._other.closed()))
        self._done(result, self._account.closed())

    def move(self) -> None:
        """Its next pass is the other model's, which has an account of its own."""
        self._account, self._other = self._other, self._account
