"""Counter-based randomness: a draw is a pure function of its key, so a repeated round repeats itself.

A key is (seed, choice, base, offset, purpose). `base` grows with every round, so no draw that a past decision has
looked at is ever used again; keys by absolute position are not exact once a rule's state has seen discarded candidates.
Only the Gumbel noise of the `coupled` rule is keyed by (seed, choice, absolute position, token id).
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from enum import IntEnum
from hashlib import blake2b
from typing import Protocol

import numpy as np

from adasd.core.types import FloatArray, IntArray

GOLDEN_GAMMA = 0x9E3779B97F4A7C15
MIX_1 = 0xBF58476D1CE4E5B9
MIX_2 = 0x94D049BB133111EB


class Purpose(IntEnum):
    """What a draw decides."""

    DRAFT = 0
    ACCEPT = 1
    EMIT = 2
    GUMBEL = 3


@dataclass(frozen=True, slots=True)
class DrawKey:
    """One draw of one round: committed length it starts from, offset in the block, purpose."""

    base: int
    offset: int
    purpose: Purpose


class Draws(Protocol):
    """Where every random decision of the loop comes from. One key, one value."""

    def bernoulli(self, key: DrawKey, probability: float) -> bool:
        """True iff the key's uniform lies below `probability`."""
        ...

    def categorical(self, key: DrawKey, weights: FloatArray | IntArray) -> int:
        """An index into `weights` [k] (>= 0, not all 0) by inverse CDF; never one of weight 0."""
        ...

    def gumbel(self, position: int, ids: IntArray) -> FloatArray:
        """Gumbel noise of token `ids` [k] at an absolute position."""
        ...


def inverse_cdf(weights: FloatArray | IntArray, uniform: float) -> int:
    """The first index whose cumulative weight exceeds uniform * sum; never an index of weight 0.

    weights: [k], >= 0, not all 0. uniform: in [0, 1).
    """
    cumulative = np.cumsum(weights)
    total = float(cumulative[-1])
    mark = min(uniform * total, math.nextafter(total, 0.0))  # the product may be rounded up to the sum itself
    return int(np.searchsorted(cumulative, mark, side="right"))


@dataclass(frozen=True, slots=True)
class CounterDraws:
    """The production draws of one choice of one request: blake2b of the key."""

    seed: int
    choice: int = 0

    def uniform(self, key: DrawKey) -> float:
        """u = (53 random bits + 1/2) / 2^53, strictly inside (0, 1)."""
        bits = self._bits(key.base, key.offset, key.purpose) >> 11
        return min((bits + 0.5) / 2**53, 1.0 - 2**-53)

    def bernoulli(self, key: DrawKey, probability: float) -> bool:
        return self.uniform(key) < probability

    def categorical(self, key: DrawKey, weights: FloatArray | IntArray) -> int:
        return inverse_cdf(weights, self.uniform(key))

    def gumbel_key(self, position: int) -> int:
        """64-bit key of a position's noise; token t takes splitmix64 of key + (t + 1) * golden gamma."""
        return self._bits(position, 0, Purpose.GUMBEL)

    def gumbel(self, position: int, ids: IntArray) -> FloatArray:
        bits = splitmix64(self.gumbel_key(position), ids) >> np.uint64(11)
        uniform = np.minimum((bits.astype(np.float64) + 0.5) / 2**53, 1.0 - 2**-53)
        return -np.log(-np.log(uniform))

    def _bits(self, base: int, offset: int, purpose: Purpose) -> int:
        packed = struct.pack("<QIQIB", self.seed, self.choice, base, offset, purpose)
        return int.from_bytes(blake2b(packed, digest_size=8).digest(), "little")


def splitmix64(key: int, ids: IntArray) -> np.typing.NDArray[np.uint64]:
    """The finaliser of splitmix64 (Steele, Lea, Flood 2014) over key + (id + 1) * golden gamma, [k]."""
    state = np.uint64(key) + (ids.astype(np.uint64) + np.uint64(1)) * np.uint64(GOLDEN_GAMMA)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(MIX_1)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(MIX_2)
    return state ^ (state >> np.uint64(31))
