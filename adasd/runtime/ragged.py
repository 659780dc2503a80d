"""Models behind `CausalRuntime`: every batch is one pass over the tokens of all its sessions, none padded."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Protocol

import torch
from torch import Tensor

from adasd.core.errors import Overloaded, SessionNotFound
from adasd.core.messages import ModelInfo
from adasd.kernels.device import DeviceKernels
from adasd.runtime.alone import Alone, Followed, alone
from adasd.runtime.attention import RaggedBatch, Span
from adasd.runtime.base import Segment
from adasd.runtime.decoder import Decoder
from adasd.runtime.kv import SessionKV, grown
from adasd.runtime.options import Role
from adasd.runtime.passes import Pass
from adasd.runtime.segments import check_batch


class Body(Protocol):
    """Tokens of all sessions in, logits of some of them out, [rows, width], none of no tokens.

    columns: int64 [width], the id each stands for; None: itself.
    """

    layer_count: int
    width: int
    columns: Tensor | None

    def forward(self, ids: Sequence[int], batch: RaggedBatch, rows: Sequence[int]) -> Tensor: ...


class RaggedRuntime:
    """`CausalRuntime[Tensor]`: logits [rows, width] on the device.

    Whatever the split into forwards and rollbacks, logits equal those of one full pass but for rounding, and not even
    that depends on the other sessions of a batch where the body's products do not. A pass that fails leaves every
    session at its segment's `base`. kv_positions: positions that may be allocated in all sessions together.
    """

    def __init__(self, body: Body, info: ModelInfo, kv_positions: int | None = None) -> None:
        self._body, self._info = body, info
        self._limit = kv_positions
        self._sessions: dict[bytes, SessionKV] = {}
        self._alone: Alone | None = None

    def equip(self, role: Role, kernels: DeviceKernels) -> None:
        """For this role, with these kernels: let a session by itself go on in one go."""
        self._alone = alone(role, self._body, kernels) if isinstance(self._body, Decoder) else None

    def follow(self, wanted: Pass, logits: Tensor) -> Followed | None:
        return None if self._alone is None else self._alone.follow(self._sessions[wanted.session], wanted, logits)

    def disturb(self, waiting: bool) -> None:
        if self._alone is not None:
            self._alone.disturb(waiting)

    @property
    def columns(self) -> Tensor | None:
        """The token id of each column of the logits; None: the column itself."""
        return self._body.columns

    def info(self) -> ModelInfo:
        return self._info

    def capacity(self, session: bytes) -> int:
        """Positions the session has room for."""
        return self._sessions[session].capacity if session in self._sessions else 0

    def check(self, batch: Sequence[Segment]) -> None:
        """Raise what `forward` would, but for Overloaded."""
        check_batch(batch, {session: kv.length for session, kv in self._sessions.items()}, self._info)

    def reserve(self, session: bytes, length: int) -> None:
        kv = self._sessions.get(session)
        if kv is None:
            kv = SessionKV(self._body.layer_count)
        if length <= kv.capacity:
            return
        wanted = grown(kv.capacity, length, self._info.context_length)
        used = self.allocated
        if self._limit is not None and used - kv.capacity + wanted > self._limit:
            raise Overloaded(f"KV of {used} positions is allocated, at most {self._limit}; {wanted} more are wanted")
        kv.reserve(length, self._info.context_length)
        self._sessions[session] = kv

    @property
    def allocated(self) -> int:
        """Positions allocated in all sessions together."""
        return sum(kv.capacity for kv in self._sessions.values())

    @torch.inference_mode()
    def fork(self, source: bytes, session: bytes, length: int) -> None:
        held = self._sessions.get(source)
        if held is None or held.length < length:
            raise SessionNotFound(f"the KV holds no {length} positions to start from")
        self.reserve(session, length)
        kv = self._sessions[session]
        for layer in range(self._body.layer_count):
            kv.length = 0
            kv.write(layer, *held.read(layer, length))
        kv.length = length

    def rename(self, session: bytes, name: bytes) -> None:
        if session not in self._sessions:
            raise SessionNotFound("the KV holds nothing of this session")
        self._sessions[name] = self._sessions.pop(session)

    def release(self, session: bytes) -> None:
        self._sessions.pop(session, None)

    @torch.inference_mode()
    def forward(self, batch: Sequence[Segment]) -> Sequence[Tensor]:
        self.check(batch)
        for segment in batch:
            self.reserve(segment.session, segment.base + len(segment.ids))
        kvs = [self._sessions.setdefault(segment.session, SessionKV(self._body.layer_count)) for segment in batch]
        for kv, segment in zip(kvs, batch, strict=True):
            kv.length = segment.base
        logits = self._pass(batch, kvs)
        for kv, segment in zip(kvs, batch, strict=True):
            kv.length = segment.base + len(segment.ids)
        return [logits] if len(batch) == 1 else torch.split(logits, [segment.rows for segment in batch])

    def _pass(self, batch: Sequence[Segment], kvs: Sequence[SessionKV]) -> Tensor:
        """Logits of all rows wanted, one session after the other, [rows, width]."""
        ends = list(accumulate(len(segment.ids) for segment in batch))
        spans = [
            Span(kv, end - len(segment.ids), end)
            for kv, segment, end in zip(kvs, batch, ends, strict=True)
            if segment.ids
        ]
        ids = [token for segment in batch for token in segment.ids]
        rows = [row for segment, end in zip(batch, ends, strict=True) for row in range(end - segment.rows, end)]
        return self._body.forward(ids, RaggedBatch(spans), rows)
