"""What a replica knows of its sessions: committed ids, ids behind the KV, and whose KV may go when room is needed.

KV is a cache, never the truth: before every forward it is rolled back to what it shares with the ids that are wanted.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from adasd.core.context import ContextHash, shared_prefix
from adasd.core.errors import InvalidRequest, Overloaded, SessionNotFound
from adasd.core.grammar import PARAM, Grammar, Grammars, Progress
from adasd.core.messages import ContextDelta
from adasd.core.types import Processing
from adasd.runtime.base import CausalRuntime

SHORTEST_FORK = 16
"""Positions; fewer are read faster than copied."""


@dataclass(slots=True)
class _Session:
    known: list[int] = field(default_factory=list)  # committed ids, as told by the gateway
    hash: ContextHash = field(default_factory=ContextHash)  # of them
    cached: list[int] = field(default_factory=list)  # ids whose KV the runtime holds
    grammar: tuple[Grammar, Progress] | None = None  # and how far the text is along it


class Sessions:
    """The sessions of one runtime, least recently used first. Owned by the thread that owns the runtime.

    keep: sessions whose KV stays when their stream has ended, for others that begin alike. grammars: over the
    vocabulary; None refuses them.
    """

    def __init__(self, runtime: CausalRuntime[Any], keep: int, grammars: Grammars | None = None) -> None:
        self._runtime, self._keep, self._grammars = runtime, keep, grammars
        self._sessions: OrderedDict[bytes, _Session] = OrderedDict()
        self._idle: OrderedDict[bytes, list[int]] = OrderedDict()
        self._released = 0

    def __len__(self) -> int:
        """Sessions that have not been released."""
        return len(self._sessions)

    def learn(self, delta: ContextDelta) -> list[int]:
        """The committed ids after a message. Raises SessionNotFound if they are not those it names."""
        session = self._sessions.setdefault(delta.session, _Session())
        self._sessions.move_to_end(delta.session)
        if delta.start > len(session.known):
            raise SessionNotFound(
                f"holds {len(session.known)} ids of this session, the message starts at {delta.start}"
            )
        if len(session.known) == delta.base and session.hash.digest == delta.hash:
            return session.known  # told before, or foreseen
        known = session.known[: delta.start] + list(delta.ids)
        goes_on = delta.start == len(session.known)
        found = session.hash.after(delta.ids) if goes_on else ContextHash().after(known)
        if len(known) != delta.base or found.digest != delta.hash:
            raise SessionNotFound("the committed ids held here are not those the message names")
        session.known, session.hash = known, found
        return known

    def known(self, name: bytes) -> list[int]:
        """The committed ids of a session."""
        return self._sessions[name].known

    def follow(self, name: bytes, others: Sessions) -> None:
        """Have the same committed ids as these sessions of another model."""
        told = others._sessions[name]
        session = self._sessions.setdefault(name, _Session())
        self._sessions.move_to_end(name)
        session.known, session.hash = told.known, told.hash

    def grow(self, name: bytes, ids: Sequence[int]) -> list[int]:
        """The committed ids of a session once these come after them, which it is not told but finds."""
        session = self._sessions[name]
        session.known, session.hash = [*session.known, *ids], session.hash.after(ids)
        return session.known

    def hash(self, name: bytes) -> ContextHash:
        """Of the committed ids; of none for a session that is not known."""
        session = self._sessions.get(name)
        return session.hash if session else ContextHash()

    def progress(self, name: bytes, processing: Processing) -> Progress | None:
        """Of a session's text in its grammar, if it has one: kept from message to message. Raises InvalidRequest."""
        grammar, session = processing.grammar, self._sessions[name]
        if grammar is None:
            return None
        if self._grammars is None:
            raise InvalidRequest("no grammars are known here", PARAM)
        if session.grammar is None or session.grammar[0] != grammar:
            session.grammar = grammar, Progress(self._grammars.start(grammar, processing.eos_ids))
        return session.grammar[1]

    def lose_progress(self, name: bytes) -> None:
        """Begin anew with the session's grammar: what was kept of it is of no further use."""
        if name in self._sessions:
            self._sessions[name].grammar = None

    def shared(self, name: bytes, wanted: Sequence[int], rows: int) -> int:
        """How many positions of `wanted` need not be read; all the KV behind them is forgotten.

        Those whose logits are wanted are read in any case. A session that holds nothing begins as the one that shares
        most with it.
        """
        session = self._sessions.setdefault(name, _Session())
        if not session.cached:
            self._fork(name, session, wanted)
        base = min(shared_prefix(session.cached, wanted), len(wanted) - max(rows, 1))
        session.cached = session.cached[:base]
        return base

    def read(self, name: bytes, ids: Sequence[int]) -> None:
        """The runtime has read these after what it held."""
        if name in self._sessions:
            self._sessions[name].cached.extend(ids)

    def distrust(self, name: bytes) -> None:
        """Whatever KV the session has is not used again."""
        if name in self._sessions:
            self._sessions[name].cached.clear()

    def release(self, name: bytes) -> None:
        """Forget a session; its KV stays for a while, for others that begin alike. Unknown ones are fine."""
        session = self._sessions.pop(name, None)
        if session is None or len(session.cached) < SHORTEST_FORK:
            self._runtime.release(name)
            return
        self._released += 1
        parked = b"idle" + self._released.to_bytes(8, "big")
        try:
            self._runtime.rename(name, parked)
        except SessionNotFound:
            return
        self._idle[parked] = session.cached
        if len(self._idle) > self._keep:
            self._drop_idle()

    def reserve(self, name: bytes, length: int, running: Collection[bytes]) -> None:
        """Room for `length` positions of a session, if need be at the cost of others that are not `running`.

        Those that nobody holds go first. Of the rest the least recently used goes, but for one that has begun already:
        what is new waits. Raises Overloaded.
        """
        while True:
            try:
                self._runtime.reserve(name, length)
                return
            except Overloaded:
                if not self._drop_idle() and not (self._sessions[name].cached and self._evict(running)):
                    raise

    def _drop_idle(self) -> bool:
        if not self._idle:
            return False
        name, _ = self._idle.popitem(last=False)
        self._runtime.release(name)
        return True

    def _evict(self, running: Collection[bytes]) -> bool:
        """Drop the KV of the least recently used session that holds any and does not run; it is read again later."""
        for name, session in self._sessions.items():
            if session.cached and name not in running:
                session.cached = []
                self._runtime.release(name)
                return True
        return False

    def _fork(self, name: bytes, session: _Session, wanted: Sequence[int]) -> None:
        """Begin with the KV of whoever shares the longest prefix, unless it is too short to matter."""
        others = [(held, other.cached) for held, other in self._sessions.items() if held != name]
        lengths = [(shared_prefix(ids, wanted), held) for held, ids in (*others, *self._idle.items())]
        length, source = max(lengths, default=(0, b""))
        if length < SHORTEST_FORK:
            return
        try:
            self._runtime.fork(source, name, length)
        except (SessionNotFound, Overloaded):
            return
        session.cached = list(wanted[:length])
