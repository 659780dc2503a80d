"""The adaptive state of a session: what AdaSD learns while it decodes, and the one reducer that changes it."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from adasd.core.acceptance import Labels
from adasd.core.density import DISTANCE_ONE, DISTANCE_ZERO, NODES, Histogram, Posterior
from adasd.core.prospects import FORMER_BYTES, PROSPECT_BYTES, Prospects
from adasd.core.types import Draft, DraftPlan
from adasd.core.verdicts import Verdict

PACKED_VERSION = 3
_VERSION = struct.Struct("<HH")  # and the number of nodes


@dataclass(frozen=True, slots=True)
class _Layout:
    """Of one version. count: format of a number of samples. prospects: bytes of theirs."""

    count: str
    prospects: int

    @property
    def entropy(self) -> struct.Struct:
        """Count and sum of rejected entropies."""
        return struct.Struct(f"<{self.count}d")

    @property
    def moments(self) -> struct.Struct:
        """n, sum, sum of squares."""
        return struct.Struct(f"<{self.count}dd")

    @property
    def histogram(self) -> int:
        """Bytes of one."""
        return self.moments.size + 4 * NODES

    @property
    def head(self) -> int:
        """Bytes before the histograms."""
        return _VERSION.size + self.entropy.size

    @property
    def size(self) -> int:
        """Bytes of all."""
        return self.head + 2 * self.histogram + self.prospects


_NOW = _Layout("I", PROSPECT_BYTES)
_LAYOUTS = {1: _Layout("Q", 0), 2: _Layout("Q", FORMER_BYTES), PACKED_VERSION: _NOW}
"""Version 1 knew no prospects, version 2 foresaw nothing."""
PACKED_BYTES = _NOW.size
_WORD = 4
NEAR_WORDS = 8
"""Unchanged words between two patches that cost less than another patch."""

UNWEIGHED = DraftPlan(0)
"""A plan of a rule that weighs no costs, from which nothing is learned about them."""


@dataclass(frozen=True, slots=True)
class Mean:
    """A running mean."""

    count: int = 0
    total: float = 0.0

    def add(self, value: float) -> Mean:
        return Mean(self.count + 1, self.total + value)

    @property
    def mean(self) -> float | None:
        """None before the first value."""
        return self.total / self.count if self.count else None


@dataclass(frozen=True, eq=False)
class AcceptanceState:
    """rejected_entropy: bits, of the candidates whose rejection ended a round (E_r; T_G is its mean).

    posterior: JS distances of judged candidates, strictly between 0 and 1, by label.
    prospects: what candidates are worth, under a rule that weighs their costs.
    """

    rejected_entropy: Mean = field(default_factory=Mean)
    posterior: Posterior = field(default_factory=Posterior)
    prospects: Prospects = field(default_factory=Prospects)

    def after(self, draft: Draft, verdict: Verdict, labels: Labels, plan: DraftPlan = UNWEIGHED) -> AcceptanceState:
        """The state after one round: judged candidates only; what followed the first rejection was never verified.

        Copied candidates say nothing of the draft model's distances and entropies.
        """
        prospects = self.prospects.after(plan, draft, verdict)
        if draft.copied or not verdict.judgements:  # a state that stays as it is has been packed already
            return self if prospects is self.prospects else replace(self, prospects=prospects)
        filed: dict[bool, list[float]] = {True: [], False: []}
        for judgement in verdict.judgements:
            if DISTANCE_ZERO < judgement.distance < DISTANCE_ONE:
                label = judgement.accepted if labels == "own" else judgement.exact
                filed[label].append(judgement.distance)
        entropy = self.rejected_entropy
        if not verdict.judgements[-1].accepted:
            entropy = entropy.add(draft.entropies[len(verdict.judgements) - 1])
        return AcceptanceState(entropy, self.posterior.add(filed[True], filed[False]), prospects)

    def anew(self) -> AcceptanceState:
        """What the next text begins with."""
        return replace(self, prospects=self.prospects.anew())

    def pack(self) -> bytes:
        """Little-endian, fixed size (PACKED_BYTES), 4-byte aligned so that `patches` stay small."""
        return self._packed

    @cached_property
    def _packed(self) -> bytes:
        entropy = _NOW.entropy.pack(self.rejected_entropy.count, self.rejected_entropy.total)
        histograms = self.posterior.accepted_samples.packed, self.posterior.rejected_samples.packed
        return b"".join([_VERSION.pack(PACKED_VERSION, NODES), entropy, *histograms, self.prospects.pack()])

    @classmethod
    def unpack(cls, packed: bytes) -> AcceptanceState:
        """The inverse of `pack`, of earlier versions too. Raises ValueError for another version or size."""
        layout = _layout(packed)
        entropy = Mean(*layout.entropy.unpack_from(packed, _VERSION.size))
        prospects = Prospects.unpack(packed[-layout.prospects :]) if layout.prospects else Prospects()
        return cls(entropy, packed_posterior(packed), prospects)


def packed_posterior(packed: bytes) -> Posterior:
    """Of a packed state: all of it by which candidates are judged. Raises ValueError as `AcceptanceState.unpack`."""
    layout = _layout(packed)
    return Posterior(*(_unpack_histogram(packed, layout, which) for which in (0, 1)))


def require_packed(packed: bytes) -> None:
    """Raises ValueError for what `AcceptanceState.unpack` does not take, without taking it apart."""
    _layout(packed)


def _layout(packed: bytes) -> _Layout:
    if len(packed) < _VERSION.size:
        raise ValueError(f"packed acceptance state has {len(packed)} bytes, expected {PACKED_BYTES}")
    version, nodes = _VERSION.unpack_from(packed)
    layout = _LAYOUTS.get(version)
    if layout is None or nodes != NODES or len(packed) != layout.size:
        raise ValueError(
            f"acceptance state of version {version}, {nodes} nodes and {len(packed)} bytes;"
            f" this is {PACKED_VERSION}, {NODES}, {PACKED_BYTES}"
        )
    return layout


def _unpack_histogram(packed: bytes, layout: _Layout, which: int) -> Histogram:
    offset = layout.head + which * layout.histogram
    n, total, squares = layout.moments.unpack_from(packed, offset)
    counts = np.frombuffer(packed, dtype="<f4", count=NODES, offset=offset + layout.moments.size)
    return Histogram(n, total, squares, counts.astype(np.float32))


def patches(old: bytes, new: bytes) -> Iterator[tuple[int, bytes]]:
    """What changed between two packed states of equal size: (offset, bytes), words near each other joined."""
    before, after = (np.frombuffer(packed, dtype="<u4") for packed in (old, new))
    start = end = -NEAR_WORDS - 1
    for word in np.flatnonzero(before != after).tolist():
        if word - end > NEAR_WORDS:
            if end > start:
                yield start * _WORD, new[start * _WORD : end * _WORD]
            start = word
        end = word + 1
    if end > start:
        yield start * _WORD, new[start * _WORD : end * _WORD]
