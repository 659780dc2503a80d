"""One generation's stream to a service, and how much of the context is already at its other end."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from adasd.core.context import Context
from adasd.core.errors import AdasdError
from adasd.core.messages import ContextDelta, DraftReply, VerifyReply
from adasd.rpc.duplex import Duplex
from services.gateway.replicas import Replica, ReplicaSet
from services.tracing import NO_SPAN, Span

Question = TypeVar("Question")
Answer = TypeVar("Answer", bound=DraftReply | VerifyReply)


def _unseen(_: str) -> Span:
    return NO_SPAN


class SessionStream(Generic[Question, Answer]):
    """The stream of one session, opened when needed, and how much of the context its peer has been sent.

    It stays with its replica, where the KV is, until it is dropped; the next one goes to another replica if it can.
    owed_seconds: how long the last question waited for answers to earlier messages, a prefill's for one.
    """

    def __init__(
        self, replicas: ReplicaSet[Any], session: bytes, weights: str | None, begin: Callable[[str], Span] = _unseen
    ) -> None:
        """replicas: whose connections open streams of this kind. weights: of the model that the session is with.

        begin: begins the span of a stream to an address.
        """
        self._replicas = replicas
        self._weights = weights
        self._session = session
        self._replica: Replica[Any] | None = None
        self._duplex: Duplex[Question, Answer] | None = None
        self._begin = begin
        self._span: Span = NO_SPAN
        self._sent = 0
        self.owed_seconds = 0.0

    def send(self, context: Context, question: Callable[[ContextDelta], Question]) -> Duplex[Question, Answer]:
        """Send what the peer has not seen of the context, and the question about it."""
        duplex = self._opened()
        start = self._sent
        ids = context.ids[start:]
        delta = ContextDelta(self._session, context.base, context.prompt_length, start, ids, context.hash)
        duplex.send(question(delta))
        self._sent = context.base
        return duplex

    async def ask(self, context: Context, round_number: int, question: Callable[[ContextDelta], Question]) -> Answer:
        """The answer to a round's question; answers that are still owed to earlier messages are skipped."""
        duplex, begin = self._opened(), time.perf_counter()
        while duplex.pending:
            await duplex.receive()
        self.owed_seconds = time.perf_counter() - begin
        base = context.base
        self.send(context, question)
        while True:
            answer = await duplex.receive()
            if (answer.round_number, answer.base) == (round_number, base):
                assert self._replica is not None, "whoever answers has been asked"
                self._replica.breaker.succeeded()
                return answer

    def settled(self) -> bool:
        """Whether no answer is outstanding. Raises the error that ended the stream."""
        return self._duplex is None or self._duplex.settle()

    @property
    def drafts(self) -> str:
        """Weights of the drafter beside the replica where the stream is, or begins with this; empty: there is none.

        Raises ServiceUnavailable if it can be nowhere.
        """
        self._opened()
        assert self._replica is not None, "an open stream is somewhere"
        return self._replica.drafts

    @property
    def can_move(self) -> bool:
        """Whether a healthy replica other than the present, or last, one is there."""
        return self._replicas.elsewhere(self._replica, self._weights)

    def drop(self, error: AdasdError | None = None) -> None:
        """Cut the stream; the peer drops its work and the session. error: why."""
        if self._duplex is not None:
            self._duplex.cancel()
            self._leave(error)

    async def close(self) -> None:
        """End the stream; the peer forgets the session."""
        duplex = self._duplex
        if duplex is not None:
            self._leave(None)
            await duplex.close()

    def _leave(self, error: AdasdError | None) -> None:
        assert self._replica is not None, "a stream is somewhere"
        self._duplex = None
        self._replica.leave(error)
        self._span.end(error)

    def _opened(self) -> Duplex[Question, Answer]:
        if self._duplex is None:
            self._replica = self._replicas.enter(self._replica, self._weights)
            self._span = self._begin(self._replica.address)
            self._duplex, self._sent = self._replica.connection.open(self._span.headers), 0
        return self._duplex
