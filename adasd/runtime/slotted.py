"""Models at fixed shapes behind `CausalRuntime`."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from adasd.core.messages import ModelInfo
from adasd.runtime.base import Segment
from adasd.runtime.segments import check_batch
from adasd.runtime.slots import SlotPool, bucket
from adasd.runtime.static import SHORT, StaticBody, Turn

ROOMY = 16
"""Rows that a pass may have whoever is in it: so few cost about what one does."""


class SlottedRuntime:
    """`CausalRuntime[Tensor]`: logits [rows, width] on the device. A session has one slot of the pool.

    A pass that fails leaves every session at its segment's `base`.
    """

    columns: Tensor | None = None

    def __init__(self, body: StaticBody, pool: SlotPool, info: ModelInfo) -> None:
        self._body, self._pool, self._info = body, pool, info

    def info(self) -> ModelInfo:
        return self._info

    def capacity(self, session: bytes) -> int:
        """Positions the session has room for."""
        return self._info.context_length if session in self._pool else 0

    def check(self, batch: Sequence[Segment]) -> None:
        """Raise what `forward` would, but for Overloaded."""
        check_batch(batch, self._pool.held(), self._info)

    @property
    def allocated(self) -> int:
        """Positions in the slots that are taken."""
        return len(self._pool) * self._pool.positions

    def reserve(self, session: bytes, length: int) -> None:
        if length:
            self._pool.slot(session)

    @torch.inference_mode()
    def fork(self, source: bytes, session: bytes, length: int) -> None:
        self._pool.fork(source, session, length)

    def rename(self, session: bytes, name: bytes) -> None:
        self._pool.rename(session, name)

    def release(self, session: bytes) -> None:
        self._pool.release(session)

    @torch.inference_mode()
    def forward(self, batch: Sequence[Segment]) -> Sequence[Tensor]:
        self.check(batch)
        for segment in batch:
            self.reserve(segment.session, len(segment.ids))
        self._roll_back(batch)
        try:
            return self._passes(batch)
        except BaseException:
            self._roll_back(batch)
            raise

    def _roll_back(self, batch: Sequence[Segment]) -> None:
        for segment in batch:
            if segment.session in self._pool:
                self._pool.lengths[self._pool.slot(segment.session)] = segment.base

    def _passes(self, batch: Sequence[Segment]) -> list[Tensor]:
        """Short ones together, long ones one by one. What was read counts at once: later passes write behind it."""
        logits = {segment.session: self._nothing() for segment in batch}
        short = [segment for segment in batch if 0 < len(segment.ids) <= SHORT]
        if short:
            self._make_compact([segment.session for segment in short])
            read = self._body.forward([self._turn(segment) for segment in short])
            for segment in short:
                rows = read[self._pool.slot(segment.session), len(segment.ids) - segment.rows : len(segment.ids)]
                logits[segment.session] = rows.clone()  # the next pass of this shape overwrites it
                self._count(segment)
        for segment in batch:
            if len(segment.ids) > SHORT:
                rows = self._body.forward([self._turn(segment)], max(1, segment.rows))[0]
                logits[segment.session] = rows if segment.rows else self._nothing()
                self._count(segment)
        return list(logits.values())

    def _make_compact(self, sessions: Sequence[bytes]) -> None:
        """Bring sessions down where slots of others would make the pass more than twice as large."""
        highest, enough = 1 + max(map(self._pool.slot, sessions)), bucket(len(sessions))
        if highest > ROOMY and bucket(highest) > 2 * enough:
            self._pool.gather(sessions, enough)

    def _turn(self, segment: Segment) -> Turn:
        return Turn(self._pool.slot(segment.session), segment.base, segment.ids)

    def _count(self, segment: Segment) -> None:
        self._pool.lengths[self._pool.slot(segment.session)] = segment.base + len(segment.ids)

    def _nothing(self) -> Tensor:
        return torch.empty(0, self._body.width, device=self._body.device)
