"""What generations run on, and the ways a gateway gets hold of a session."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from dataclasses import dataclass, field, replace

from adasd.core.adaptive import AcceptanceState
from adasd.core.errors import AdasdError, Conflict, SessionNotFound
from adasd.core.marginal import Marginal
from adasd.core.messages import ModelInfo
from adasd.state.base import Claim, Commit, Ownership, SessionRecord, SessionStore, StoredSession
from services.gateway.admission import Admitted
from services.gateway.costs import Lessons, LiveCosts
from services.gateway.metrics import GatewayMetrics
from services.gateway.peers import Peers
from services.gateway.round_times import RoundTimes
from services.gateway.sessions import Session, fingerprints, require_costs, require_models, restored
from services.gateway.text import ChatText
from services.gateway.traced_times import TracedTimes
from services.tracing import OFF, Tracing

logger = logging.getLogger(__name__)

FIRST_EPOCH = 1
LET_GO_PAUSES = (0.05, 0.1, 0.2, 0.4)
"""Seconds between looks at a session whose client may just have left it, before its next turn is refused."""


def system_fingerprint(target: ModelInfo, draft: ModelInfo | None, cost_profile: str | None) -> str:
    """Changes with the weights behind an answer, and with the costs where its text depends on them."""
    drafted = draft.weights_fingerprint[:8] if draft else "none"
    return "_".join(["fp", target.weights_fingerprint[:8], drafted, *([cost_profile] if cost_profile else [])])


@dataclass(frozen=True, slots=True)
class Held:
    """A session this gateway may run, as it was stored when the gateway got hold of it."""

    ownership: Ownership
    stored: StoredSession


@dataclass(frozen=True, slots=True)
class Turn:
    """What a request begins: a session, or the next turn of one. state: what it has learned so far."""

    session: Session
    former: StoredSession | None
    state: AcceptanceState

    @property
    def epoch(self) -> int:
        return self.former.record.epoch + 1 if self.former else FIRST_EPOCH


@dataclass(frozen=True, slots=True)
class Engine:
    """owner: this gateway, as sessions name it. costs: what rounds take here. lessons: what they bring.

    tracing: where its spans go.
    """

    text: ChatText
    peers: Peers
    store: SessionStore
    metrics: GatewayMetrics
    owner: str
    costs: LiveCosts = field(default_factory=LiveCosts)
    lessons: Lessons = field(default_factory=Lessons)
    tracing: Tracing = OFF

    def times(self, session: Session, arrived: float) -> RoundTimes:
        """The stopwatch of one answer."""
        return RoundTimes(arrived) if self.tracing is OFF else TracedTimes(self.tracing, session, arrived)

    async def turns(self, admitted: Admitted, principal: str) -> list[Turn]:
        """What an admitted request begins, one a choice. Raises SessionNotFound for the session it names unless it is
        this principal's, Conflict if that is running or was made by other models.
        """
        fingerprint = system_fingerprint(self._target, self.peers.draft, admitted.cost_profile)
        sessions = Session.of_request(admitted, fingerprint, principal, self.tracing.traceparent)
        named = admitted.asked.session
        if named is None:
            return [Turn(session, None, self._first_state(session)) for session in sessions]
        (session,) = sessions
        former = await self._at_rest(bytes.fromhex(named), principal)
        require_models(former.record.models, self.models, finished=False)
        generation = replace(session.generation, session=former.record.session)
        session = replace(session, generation=generation, turn=former.record.turn + 1)
        cold = admitted.asked.speculation.scope == "request"
        return [Turn(session, former, self._first_state(session) if cold else restored(former).acceptance.anew())]

    async def begin(self, turn: Turn) -> Held:
        """Write the record of a turn, as its owner."""
        record, packed = turn.session.record(self.owner, turn.epoch, self.models), turn.state.pack()
        await self.store.create(record, packed, turn.former)
        stored = StoredSession(record, 0, record.prompt, packed, {}, None)
        return Held(self.ownership(turn), stored)

    def ownership(self, turn: Turn) -> Ownership:
        """Under which a turn begins."""
        return Ownership(turn.session.id, self.owner, turn.epoch)

    async def take_over(self, session: Session) -> Held:
        """Run a session that nobody holds. Raises Conflict if somebody does after all."""
        self.require_unchanged(await self.load(session))
        ownership, _ = await self.store.take_over(session.id, self.owner)
        self.metrics.taken_over()
        logger.info("a session was taken over, epoch %d", ownership.epoch)
        return Held(ownership, await self.load(session))

    async def load(self, session: Session) -> StoredSession:
        """A turn as stored now. Raises SessionNotFound if it is gone or no longer the latest."""
        stored = await self.store.load(session.id)
        if stored is None or stored.record.turn != session.turn:
            raise SessionNotFound("the session has expired, or has gone on to its next turn")
        return stored

    async def find(self, session: bytes, principal: str) -> StoredSession:
        """Somebody's session, as a request asks for it. Raises SessionNotFound, for those of others too."""
        stored = await self.store.load(session, begins=True)
        if stored is None or stored.record.principal != principal:
            raise SessionNotFound("no such session")
        return stored

    def session(self, record: SessionRecord) -> Session:
        """A session that was begun here or elsewhere, to be run here if nobody else does."""
        return Session.of_record(record, self.costs)

    def require_unchanged(self, stored: StoredSession) -> None:
        """Raises SessionIncompatible where a text cannot go on here as it began, or, being finished, not be read."""
        finished = stored.finish_reason is not None
        require_models(stored.record.models, self.models, finished)
        if not finished:
            require_costs(stored.record, self.costs.prior.version)

    async def stop(self, session: bytes, claim: Claim) -> None:
        """End a session, unless it has ended or the claim does not hold; whoever runs it stops with its next commit."""
        with suppress(Conflict, SessionNotFound):
            ownership, round_number = await self.store.take_over(session, self.owner, claim)
            end = Commit(session, self.owner, ownership.epoch, round_number, (), (), {}, "cancelled")
            await self.store.commit(end)

    async def abandon(self, ownership: Ownership) -> None:
        """End a session that is run here and that nobody wants any more."""
        try:
            await self.stop(ownership.session, ownership.epoch)
        except AdasdError as error:
            logger.warning("a session was left as it was: %s", error)

    def _first_state(self, session: Session) -> AcceptanceState:
        """Fresh, or under a rule that weighs costs what others found, unless the text must not depend on them."""
        weighs = isinstance(session.generation.stopping, Marginal)
        return self.lessons.begin() if weighs and session.learns_from_others else AcceptanceState()

    @property
    def models(self) -> dict[str, str]:
        return fingerprints(self._target, self.peers.draft)

    @property
    def _target(self) -> ModelInfo:
        target = self.peers.target
        assert target is not None, "ready means that the verifier has answered"
        return target

    async def _at_rest(self, session: bytes, principal: str) -> StoredSession:
        """A session that its next turn may begin on: a client that goes and comes back at once need not wait."""
        for pause in LET_GO_PAUSES:
            stored = await self.find(session, principal)
            if not stored.running:
                return stored
            await asyncio.sleep(pause)
        raise Conflict("the session is running; a session has one request at a time")
