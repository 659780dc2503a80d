"""A model serving sessions: what both services do on their device thread, whichever runtime is behind them.

KV is a cache, never the truth: before every forward it is rolled back to what it shares with the ids the message names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from adasd.core.adaptive import AcceptanceState
from adasd.core.backend import Kernels, Proposal
from adasd.core.context import context_hash
from adasd.core.drafting import draft_block
from adasd.core.draws import CounterDraws
from adasd.core.errors import ContextLengthExceeded, NumericalFault, SessionNotFound
from adasd.core.messages import ContextDelta, DraftRequest, ModelInfo, VerifyRequest
from adasd.core.types import Draft, Verdict
from adasd.core.verification import verification
from adasd.runtime.base import CausalRuntime, Segment


class Rows(Protocol):
    """Logits of some positions, [rows, vocabulary]: numpy or torch."""

    def __getitem__(self, row: int, /) -> Any: ...


L = TypeVar("L", bound=Rows)


def never() -> bool:
    """The default of `cancelled`."""
    return False


@dataclass(slots=True)
class _Session:
    known: list[int] = field(default_factory=list)  # committed ids, as told by the gateway
    cached: list[int] = field(default_factory=list)  # ids whose KV the runtime holds


class Replica(Generic[L]):
    """Sessions of one model: committed ids, and the ids behind the KV. Owned by one thread."""

    def __init__(self, runtime: CausalRuntime[L], kernels: Kernels[L, CounterDraws]) -> None:
        self._runtime = runtime
        self._kernels = kernels
        self._sessions: dict[bytes, _Session] = {}

    def info(self) -> ModelInfo:
        return self._runtime.info()

    def release(self, session: bytes) -> None:
        """Forget a session; unknown ones are fine."""
        self._sessions.pop(session, None)
        self._runtime.release(session)

    def propose(self, request: DraftRequest, cancelled: Callable[[], bool] = never) -> Draft:
        """Read the context, then draft as far as the plan goes. `cancelled` is asked before every forward."""
        session, known = request.context.session, self._learn(request.context)
        if request.plan.max_candidates == 0:
            self._forward(session, known, rows=0)
            return Draft()
        room = self.info().context_length - len(known)
        draws = CounterDraws(request.sampling.seed, request.sampling.choice)

        def propose(candidates: Sequence[int]) -> Proposal | None:
            if cancelled():
                return None
            logits = self._forward(session, [*known, *candidates], rows=1)
            with self._distrusting(session):
                return self._kernels.propose(logits[0], request.sampling)

        return draft_block(propose, request.plan.limited(room), len(known), draws, self.info().eos_ids)

    def verify(self, request: VerifyRequest) -> Verdict:
        """Judge one block: one forward over what the KV lacks and the candidates, then the acceptance rule."""
        known, draft = self._learn(request.context), request.draft
        method = verification(request.acceptance)
        state = AcceptanceState.unpack(request.state)
        logits = self._forward(request.context.session, [*known, *draft.ids], rows=len(draft) + 1)
        draws = CounterDraws(request.sampling.seed, request.sampling.choice)
        with self._distrusting(request.context.session):
            target = self._kernels.target(logits, request.sampling)
        return method.verify(target, draft, state.posterior, len(known), draws)

    def _learn(self, delta: ContextDelta) -> list[int]:
        session = self._sessions.setdefault(delta.session, _Session())
        if delta.start > len(session.known):
            raise SessionNotFound(
                f"holds {len(session.known)} ids of this session, the message starts at {delta.start}"
            )
        known = session.known[: delta.start] + list(delta.ids)
        if len(known) != delta.base or context_hash(known) != delta.hash:
            raise SessionNotFound("the committed ids held here are not those the message names")
        session.known = known
        return known

    def _forward(self, session: bytes, wanted: list[int], rows: int) -> L:
        """Logits of the last `rows` positions of `wanted`, reusing the KV it shares with what is cached."""
        limit = self.info().context_length
        if len(wanted) > limit:
            raise ContextLengthExceeded(f"{len(wanted)} positions, the model attends to {limit}")
        state = self._sessions[session]
        base = min(shared_prefix(state.cached, wanted), len(wanted) - max(rows, 1))
        state.cached = wanted[:base]  # should the forward fail, nothing past `base` counts as cached
        try:
            (logits,) = self._runtime.forward([Segment(session, base, wanted[base:], rows)])
        except SessionNotFound:  # the runtime let go of the KV; all ids are known here, so read them again
            state.cached = []
            (logits,) = self._runtime.forward([Segment(session, 0, wanted, rows)])
        state.cached = wanted
        return logits

    @contextmanager
    def _distrusting(self, session: bytes) -> Iterator[None]:
        """KV behind logits that are no numbers is not used again."""
        try:
            yield
        except NumericalFault:
            self._sessions[session].cached = []
            raise


def shared_prefix(left: list[int], right: list[int]) -> int:
    """Length of the longest common prefix."""
    length = min(len(left), len(right))
    if left[:length] == right[:length]:
        return length
    return next(i for i in range(length) if left[i] != right[i])
