"""What jobs and a batcher say to each other: the passes that a message's work needs, and the account of its time."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Generator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar, cast

from adasd.core.drafting import Block
from adasd.core.draws import CounterDraws
from adasd.core.messages import Timing
from adasd.core.processing import Edits
from adasd.core.types import Draft, SamplingParams
from adasd.core.verdicts import Verdict
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


class Judged(NamedTuple):
    """A block, what stands of it, and where the time of drafting it went."""

    draft: Draft
    verdict: Verdict
    drafting: Timing = Timing()


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
        self._drafting = Timing()
        self._account_anew()

    def _account_anew(self) -> None:
        self._forwards = self._sessions = self._tokens = 0
        self._queue = self._forward = self._rules = 0.0

    def count(self, queue: float, forward: float, sessions: int, tokens: int) -> None:
        """It took part in a pass with so many sessions and tokens, its own included; seconds before it and in it."""
        self._forwards += 1
        self._queue += queue
        self._forward += forward
        self._sessions += sessions
        self._tokens += tokens

    def spent(self, rules: float) -> None:
        """Seconds of sampling or judging."""
        self._rules += rules

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
        if isinstance(result, Judged):
            result = cast(T, result._replace(drafting=self._drafting))
        self._done(result, self._timing)

    def move(self) -> None:
        """Its next pass is another model's: what comes is accounted for by itself."""
        self._drafting = self._timing
        self._account_anew()

    @property
    def _timing(self) -> Timing:
        return Timing(self._forwards, self._queue, self._forward, self._rules, self._sessions, self._tokens)
