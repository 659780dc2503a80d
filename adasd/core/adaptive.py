"""The adaptive state of a session: what AdaSD learns while it decodes, and the one reducer that changes it."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from adasd.core.acceptance import Labels
from adasd.core.density import DISTANCE_ONE, DISTANCE_ZERO, NODES, Histogram, Posterior
from adasd.core.types import Draft, Verdict

PACKED_VERSION = 1
_HEADER = struct.Struct("<HHQd")  # version, nodes, count and sum of rejected entropies
_MOMENTS = struct.Struct("<Qdd")  # n, sum, sum of squares
PACKED_BYTES = _HEADER.size + 2 * (_MOMENTS.size + 4 * NODES)
_WORD = 4


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
    """

    rejected_entropy: Mean = field(default_factory=Mean)
    posterior: Posterior = field(default_factory=Posterior)

    def after(self, draft: Draft, verdict: Verdict, labels: Labels) -> AcceptanceState:
        """The state after one round: judged candidates only; what followed the first rejection was never verified."""
        filed: dict[bool, list[float]] = {True: [], False: []}
        for judgement in verdict.judgements:
            if DISTANCE_ZERO < judgement.distance < DISTANCE_ONE:
                label = judgement.accepted if labels == "own" else judgement.exact
                filed[label].append(judgement.distance)
        entropy = self.rejected_entropy
        if verdict.judgements and not verdict.judgements[-1].accepted:
            entropy = entropy.add(draft.entropies[len(verdict.judgements) - 1])
        return AcceptanceState(entropy, self.posterior.add(filed[True], filed[False]))

    def pack(self) -> bytes:
        """Little-endian, fixed size (PACKED_BYTES), 4-byte aligned so that `patches` stay small."""
        parts = [_HEADER.pack(PACKED_VERSION, NODES, self.rejected_entropy.count, self.rejected_entropy.total)]
        for histogram in (self.posterior.accepted_samples, self.posterior.rejected_samples):
            parts.append(_MOMENTS.pack(histogram.n, histogram.total, histogram.squares))
            parts.append(histogram.counts.astype("<f4").tobytes())
        return b"".join(parts)

    @classmethod
    def unpack(cls, packed: bytes) -> AcceptanceState:
        """The inverse of `pack`. Raises ValueError for another version or size."""
        if len(packed) != PACKED_BYTES:
            raise ValueError(f"packed acceptance state has {len(packed)} bytes, expected {PACKED_BYTES}")
        version, nodes, count, total = _HEADER.unpack_from(packed)
        if (version, nodes) != (PACKED_VERSION, NODES):
            raise ValueError(
                f"acceptance state of version {version} with {nodes} nodes; this is {PACKED_VERSION}, {NODES}"
            )
        accepted = _unpack_histogram(packed, _HEADER.size)
        rejected = _unpack_histogram(packed, _HEADER.size + _MOMENTS.size + 4 * NODES)
        return cls(Mean(count, total), Posterior(accepted, rejected))


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
