"""A model serving sessions: what both services do on their device thread, whichever runtime is behind them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from adasd.core.backend import Kernels
from adasd.core.context import ContextHash
from adasd.core.draws import CounterDraws
from adasd.core.grammar import Grammars
from adasd.core.messages import DraftRequest, ModelInfo, Timing, VerifyRequest
from adasd.core.rows import check_block
from adasd.core.types import Draft
from adasd.core.verdicts import Verdict
from adasd.runtime.base import CausalRuntime
from adasd.runtime.batching import Batcher, Rows, Schedule
from adasd.runtime.cores import SharedCores
from adasd.runtime.jobs import Side, draft_steps, planned_steps, verify_steps
from adasd.runtime.options import Role
from adasd.runtime.pace import pace
from adasd.runtime.pairing import PairBatcher
from adasd.runtime.passes import Job, Planned, Steps, never
from adasd.runtime.sessions import Sessions

L = TypeVar("L", bound=Rows)
T = TypeVar("T")


class Replica(Generic[L]):
    """Sessions of one model, and the batcher that works for them. Owned by one thread.

    grammars: over the model's vocabulary; without them what asks for one is refused.
    """

    def __init__(
        self,
        runtime: CausalRuntime[L],
        kernels: Kernels[L, CounterDraws],
        schedule: Schedule | None = None,
        grammars: Grammars | None = None,
    ) -> None:
        schedule = schedule or Schedule()
        self._runtime, self._kernels = runtime, kernels
        self._sessions = Sessions(runtime, schedule.idle_sessions, grammars)
        self._own = Batcher(runtime, kernels, self._sessions, schedule)
        self.batcher: Batcher[L] | PairBatcher = self._own
        self._running = schedule.running
        self._beside: Replica[Any] | None = None
        self._pace: tuple[float, ...] = ()

    def join(self, draft: Replica[Any]) -> PairBatcher:
        """Have a draft model beside this target: its work is done here from now on, on this thread."""
        self._beside = draft
        self.batcher = pair = PairBatcher(draft._own, self._own, self._running)
        return pair

    def info(self) -> ModelInfo:
        return self._runtime.info()

    def pace(self, role: Role, cores: SharedCores) -> tuple[float, ...]:
        """Seconds of a pass over 1, 2, 4, ... rows, with nobody else in it; known from then on."""
        self._pace = pace(self._runtime, self._kernels, role, cores)
        return self._pace

    @property
    def allocated(self) -> int:
        """Positions of KV that all sessions together take up."""
        return self._runtime.allocated

    def release(self, session: bytes) -> None:
        """Forget a session; unknown ones are fine."""
        self._sessions.release(session)
        if self._beside is not None:
            self._beside.release(session)

    def context_hash(self, session: bytes) -> ContextHash:
        """Of what is known of a session."""
        return self._sessions.hash(session)

    def draft_steps(self, request: DraftRequest) -> Steps[Draft]:
        """A block of candidates, for the batcher."""
        if self._beside is not None:
            return self._beside.draft_steps(request)
        return draft_steps(self._sessions, self.info(), request)

    def planned_steps(self, request: VerifyRequest) -> Steps[Planned]:
        """Blocks of the draft model beside and their verdicts, for the batcher."""
        assert self._beside is not None, "there is a draft model"
        return planned_steps(self._beside._side, self._side, request, self._pace)

    @property
    def _side(self) -> Side:
        return Side(self._sessions, self.info())

    def verify_steps(self, request: VerifyRequest) -> Steps[Verdict]:
        """A verdict, for the batcher."""
        return verify_steps(self._sessions, self.info(), request, lambda: self.batcher.passes, self._pace)

    def propose(self, request: DraftRequest, cancelled: Callable[[], bool] = never) -> Draft:
        """Read the context, then draft as far as the plan goes, with nobody else in the batch."""
        return self._alone(self.draft_steps(request), cancelled)

    def verify(self, request: VerifyRequest) -> Verdict:
        """Judge one block, with nobody else in the batch. Raises InvalidDraft for one that is not sound."""
        check_block(request.draft, self.info().vocabulary)
        return self._alone(self.verify_steps(request), never)

    def _alone(self, steps: Steps[T], cancelled: Callable[[], bool]) -> T:
        results: list[Any] = []

        def done(result: Any, timing: Timing) -> None:
            results.append(result)

        self.batcher.add(Job(steps, done, cancelled))
        while not results:
            self.batcher.step()
        if isinstance(results[0], BaseException):
            raise results[0]
        result: T = results[0]
        return result
