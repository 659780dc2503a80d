"""The adaptive state of a session: what AdaSD learns while it decodes, and the one reducer that changes it."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from adasd.core.acceptance import Labels
from adasd.core.density import DISTANCE_ONE, DISTANCE_ZERO, NODES, Histogram, Posterior
from adasd.core.prospects import PROSPECT_BYTES, Prospects
from adasd.core.types import Draft, DraftPlan, Verdict

PACKED_VERSION = 2
_HEADER = struct.Struct("<HHQd")  # version, nodes, count and sum of rejected entropies
_MOMENTS = struct.Struct("<Qdd")  # n, sum, sum of squares
_FIRST_BYTES = _HEADER.size + 2 * (_MOMENTS.size + 4 * NODES)
"""Version 1, which knew no prospects."""
PACKED_BYTES = _FIRST_BYTES + PROSPECT_BYTES
_WORD = 4

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


@dataclass(frozen=True, slots=True, eq=False)
class AcceptanceState:
    """rejected_entropy: bits, of the candidates whose rejection ended a round (E_r; T_G is its mean).

    posterior: JS distances of judged candidates, strictly between 0 and 1, by label.
    prospects: what candidates are worth, under a rule that weighs their costs.
    """

    rejected_entropy: Mean = field(default_factory=Mean)
    posterior: Posterior = field(default_factory=Posterior)
    prospects: Prospects = field(default_factory=Prospects)

    def after(self, draft: Draft, verdict: Verdict, labels: Labels, plan: DraftPlan = UNWEIGHED) -> AcceptanceState:
        """The state after one round: judged candidates only; what followed the first rejection was never verified."""
        filed: dict[bool, list[float]] = {True: [], False: []}
        for judgement in verdict.judgements:
            if DISTANCE_ZERO < judgement.distance < DISTANCE_ONE:
                label = judgement.accepted if labels == "own" else judgement.exact
                filed[label].append(judgement.distance)
        entropy = self.rejected_entropy
        if verdict.judgements and not verdict.judgements[-1].accepted:
            entropy = entropy.add(draft.entropies[len(verdict.judgements) - 1])
        prospects = self.prospects.after(plan, draft, verdict)
        return AcceptanceState(entropy, self.posterior.add(filed[True], filed[False]), prospects)

    def pack(self) -> bytes:
        """Little-endian, fixed size (PACKED_BYTES), 4-byte aligned so that `patches` stay small."""
        parts = [_HEADER.pack(PACKED_VERSION, NODES, self.rejected_entropy.count, self.rejected_entropy.total)]
        for histogram in (self.posterior.accepted_samples, self.posterior.rejected_samples):
            parts.append(_MOMENTS.pack(histogram.n, histogram.total, histogram.squares))
            parts.append(histogram.counts.astype("<f4").tobytes())
        return b"".join([*parts, self.prospects.pack()])

    @classmethod
    def unpack(cls, packed: bytes) -> AcceptanceState:
        """The inverse of `pack`; version 1 has no prospects yet. Raises ValueError for another version or size."""
        if len(packed) < _HEADER.size:
            raise ValueError(f"packed acceptance state has {len(packed)} bytes, expected {PACKED_BYTES}")
        version, nodes, count, total = _HEADER.unpack_from(packed)
        if (version, nodes, len(packed)) not in ((1, NODES, _FIRST_BYTES), (PACKED_VERSION, NODES, PACKED_BYTES)):
            raise ValueError(
                f"acceptance state of version {version}, {nodes} nodes and {len(packed)} bytes;"
                f" this is {PACKED_VERSION}, {NODES}, {PACKED_BYTES}"
            )
        accepted = _unpack_histogram(packed, _HEADER.size)
        rejected = _unpack_histogram(packed, _HEADER.size + _MOMENTS.size + 4 * NODES)
        prospects = Prospects() if version == 1 else Prospects.unpack(packed[_FIRST_BYTES:])
        return cls(Mean(count, total), Posterior(accepted, rejected), prospects)


def _unpack_histogram(packed: bytes, offset: int) -> Histogram:
    n, total, squares = _MOMENTS.unpack_from(packed, offset)
    counts = np.frombuffer(packed, dtype="<f4", count=NODES, offset=offset + _MOMENTS.size)
    return Histogram(n, total, squares, counts.astype(np.float32))


def patches(old: bytes, new: bytes) -> Iterator[tuple[int, bytes]]:
    """What changed between two packed states of equal size: (offset, bytes), neighbouring words joined."""
    before, after = (np.frombuffer(packed, dtype="<u4") for packed in (old, new))
    changed = np.flatnonzero(before != after)
    for run in np.split(changed, np.flatnonzero(np.diff(changed) > 1) + 1) if len(changed) else ():
        start, end = int(run[0]) * _WORD, (int(run[-1]) + 1) * _WORD
        yield start, new[start:end]
