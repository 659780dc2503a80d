"""The session record and the Protocol of its store. What a client has seen is in the store: commit before emit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from adasd.core.types import FinishReason


@dataclass(frozen=True, slots=True)
class SessionRecord:
    """Everything the text of a generation depends on, written once when it begins.

    session: 16 random bytes. owner: the gateway that runs it. prompt: token ids.
    parameters: the request's sampling, seed, rules and limits, JSON-compatible.
    models: fingerprints of target, draft and vocabulary.
    """

    session: bytes
    owner: str
    epoch: int
    prompt: Sequence[int]
    parameters: Mapping[str, object]
    models: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Commit:
    """One round. round_number counts from 0; the store accepts exactly the next one.

    tokens: the new ids. patches: (offset, bytes) of what changed in the packed acceptance state.
    counters: usage so far, absolute values. finish_reason: set by the last commit.
    """

    session: bytes
    owner: str
    epoch: int
    round_number: int
    tokens: Sequence[int]
    patches: Sequence[tuple[int, bytes]]
    counters: Mapping[str, int | float]
    finish_reason: FinishReason | None = None


@dataclass(frozen=True, slots=True)
class StoredSession:
    """A session as read back: rounds committed so far, all token ids (prompt first), packed acceptance state."""

    record: SessionRecord
    rounds: int
    ids: Sequence[int]
    state: bytes
    counters: Mapping[str, float]
    finish_reason: FinishReason | None


class SessionStore(Protocol):
    """Where sessions live. All writes are compare-and-set on (owner, epoch, round).

    Every operation raises ServiceUnavailable if the store does not answer; every write raises Overloaded if it is full.
    """

    async def create(self, record: SessionRecord, state: bytes) -> None:
        """Write a new session at round 0. Raises Conflict if it exists."""
        ...

    async def commit(self, commit: Commit) -> None:
        """Append one round and publish the new length. The same commit again (after a lost reply) is fine.

        Raises Conflict if owner, epoch or round moved on, SessionNotFound if the session is gone.
        """
        ...

    async def load(self, session: bytes) -> StoredSession | None:
        """The session as committed, or None. Raises ServiceUnavailable for a record that a newer release wrote."""
        ...

    async def ping(self) -> None:
        """Raises ServiceUnavailable if the store does not answer."""
        ...

    async def close(self) -> None: ...
