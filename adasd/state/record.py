"""A session as Redis holds it: three keys under one hash tag, and the arguments of the scripts that write them.

    adasd:{<session hex>}:meta    hash: version, owner, epoch, round, length, prompt_length, parameters and models
                                  (JSON), principal, turn, counter:<name>, finish_reason, digest of the last write,
                                  lease (when it lapses, ms of Redis' clock), taken (digest of the last take-over,
                                  or of the creation)
    adasd:{<session hex>}:ids     little-endian uint32 per token, prompt first; only grows
    adasd:{<session hex>}:state   packed acceptance state, at most MAX_STATE_BYTES, patched in place

The channel `adasd:{<session hex>}:length` carries the new length, in tokens, of every commit; every renewal repeats it.

Version 1 knew neither leases (they count as lapsed) nor principals (such a session counts as anonymous); versions 1
and 2 knew no grammars, so a release that writes those leaves a session of version 3 to others.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import cast

from adasd.core.context import pack_ids, unpack_ids
from adasd.core.errors import ServiceUnavailable
from adasd.core.types import FinishReason
from adasd.state.base import Claim, Commit, Ownership, SessionRecord, StoredSession, Tail

RECORD_VERSION = 3
SESSION_BYTES = 16
MAX_STATE_BYTES = 3072
_DIGEST_BYTES = 16
_COUNTER = b"counter:"


@dataclass(frozen=True, slots=True)
class SessionKeys:
    """Where one session lives. The braces are a cluster's hash tag: all of it on one node."""

    meta: str
    ids: str
    state: str
    channel: str

    @classmethod
    def of(cls, session: bytes) -> SessionKeys:
        """Raises ValueError unless the id has 16 bytes."""
        if len(session) != SESSION_BYTES:
            raise ValueError(f"session must have {SESSION_BYTES} bytes, got {len(session)}")
        prefix = f"adasd:{{{session.hex()}}}"
        return cls(f"{prefix}:meta", f"{prefix}:ids", f"{prefix}:state", f"{prefix}:length")

    @property
    def all(self) -> list[str]:
        """KEYS of every script."""
        return [self.meta, self.ids, self.state]


@dataclass(frozen=True, slots=True)
class Lives:
    """How long a record lives unless it is written, and how long its owner's lease does. Both in seconds."""

    ttl: int
    lease: float

    def arguments(self, released: bool = False) -> list[bytes]:
        """As the scripts take them: seconds, milliseconds. released: the lease ends now."""
        return [_number(self.ttl), _number(0 if released else round(1000 * self.lease))]


def creation_arguments(
    record: SessionRecord, state: bytes, lives: Lives, former: StoredSession | None = None
) -> list[bytes]:
    """ARGV of create.lua. The digest is random: only a repetition of this very call carries it again."""
    if len(state) > MAX_STATE_BYTES:
        raise ValueError(f"state must have at most {MAX_STATE_BYTES} bytes, got {len(state)}")
    length = _number(len(record.prompt))
    fields = {
        b"version": _number(RECORD_VERSION),
        b"owner": record.owner.encode(),
        b"epoch": _number(record.epoch),
        b"round": b"0",
        b"length": length,
        b"prompt_length": length,
        b"parameters": _to_json(record.parameters),
        b"models": _to_json(record.models),
        b"principal": record.principal.encode(),
        b"turn": _number(record.turn),
    }
    turn = [b"", b""] if former is None else [_number(former.record.epoch), _number(former.rounds)]
    return [new_digest(), *lives.arguments(), *turn, pack_ids(record.prompt), state, *_flat(fields)]


def renewal_arguments(ownership: Ownership, channel: str, lives: Lives, release: bool) -> list[bytes]:
    """ARGV of renew.lua."""
    return [ownership.owner.encode(), _number(ownership.epoch), *lives.arguments(release), channel.encode()]


def take_over_arguments(owner: str, lives: Lives, claim: Claim) -> list[bytes]:
    """ARGV of take_over.lua."""
    return [new_digest(), owner.encode(), *lives.arguments(), str(claim).encode()]


def commit_arguments(commit: Commit, channel: str, lives: Lives) -> list[bytes]:
    """ARGV of commit.lua: as many bytes as the round is long, however long the session.

    Raises ValueError for a negative round, no round at all or a patch outside the largest state.
    """
    if commit.round_number < 0:
        raise ValueError(f"round_number must not be negative, got {commit.round_number}")
    if commit.rounds < 1:
        raise ValueError(f"rounds must be at least 1, got {commit.rounds}")
    counters = {_COUNTER + name.encode(): repr(float(value)).encode() for name, value in commit.counters.items()}
    guard = [commit.owner.encode(), _number(commit.epoch), _number(commit.round_number)]
    tokens, finish_reason = pack_ids(commit.tokens), (commit.finish_reason or "").encode()
    change = [tokens, finish_reason, _number(len(counters)), *_flat(counters), *_patch_arguments(commit.patches)]
    digest, rounds = _digest([*guard, *change]), _number(commit.rounds)
    return [*guard, digest, *lives.arguments(), channel.encode(), rounds, *change]


def stored_tail(
    turn: bytes, epoch: bytes, length: bytes, ids: bytes, finish_reason: bytes, lease: int, taken: bytes
) -> Tail:
    """A reply of tail.lua. lease: milliseconds left."""
    reason = cast(FinishReason | None, finish_reason.decode() or None)
    return Tail(int(turn), int(epoch), taken, int(length), unpack_ids(ids), reason, lease / 1000)


def stored_session(
    session: bytes, meta: Mapping[bytes, bytes], ids: bytes | None, state: bytes | None, lease: int = 0
) -> StoredSession | None:
    """A session from what its keys hold, or None if one of them is gone. lease: milliseconds left.

    Raises ServiceUnavailable for a record that a newer release wrote.
    """
    if not meta:
        return None
    version = int(meta[b"version"])
    if version > RECORD_VERSION:
        raise ServiceUnavailable(f"session record has version {version}; this release reads up to {RECORD_VERSION}")
    if ids is None or state is None or len(ids) != len(pack_ids([0])) * int(meta[b"length"]):
        return None
    all_ids = unpack_ids(ids)
    finish_reason = meta[b"finish_reason"].decode() if b"finish_reason" in meta else None
    return StoredSession(
        record=_record(session, meta, all_ids[: int(meta[b"prompt_length"])]),
        rounds=int(meta[b"round"]),
        ids=all_ids,
        state=state,
        counters={
            name.removeprefix(_COUNTER).decode(): float(value)
            for name, value in meta.items()
            if name.startswith(_COUNTER)
        },
        finish_reason=cast(FinishReason | None, finish_reason),
        lease=lease / 1000,
    )


def _record(session: bytes, meta: Mapping[bytes, bytes], prompt: Sequence[int]) -> SessionRecord:
    return SessionRecord(
        session=session,
        owner=meta[b"owner"].decode(),
        epoch=int(meta[b"epoch"]),
        prompt=prompt,
        parameters=json.loads(meta[b"parameters"]),
        models=json.loads(meta[b"models"]),
        principal=meta.get(b"principal", b"").decode(),
        turn=int(meta.get(b"turn", 1)),
    )


def new_digest() -> bytes:
    """For a write that no other one equals."""
    return secrets.token_bytes(_DIGEST_BYTES)


def _patch_arguments(patches: Sequence[tuple[int, bytes]]) -> Iterator[bytes]:
    for offset, patch in patches:
        if not 0 <= offset <= MAX_STATE_BYTES - len(patch):
            raise ValueError(f"patch of {len(patch)} bytes at {offset} is outside a state of {MAX_STATE_BYTES} bytes")
        yield _number(offset)
        yield patch


def _digest(parts: Sequence[bytes]) -> bytes:
    hasher = blake2b(digest_size=_DIGEST_BYTES)
    for part in parts:
        hasher.update(len(part).to_bytes(8, "little"))
        hasher.update(part)
    return hasher.digest()


def _to_json(value: Mapping[str, object]) -> bytes:
    return json.dumps(dict(value), allow_nan=False).encode()


def _number(value: int) -> bytes:
    return b"%d" % value


def _flat(fields: Mapping[bytes, bytes]) -> Iterator[bytes]:
    for name, value in fields.items():
        yield name
        yield value
