"""Whether one more candidate is worth its time: the marginal rule, as the drafter applies it step by step.

Decoding is a renewal-reward process: a round of k candidates costs C(k) seconds and earns 1 + accepted tokens. At the
going rate, lambda tokens a second, drafting goes on from i candidates iff some j > i pays:

    S_i (a + a^2 + ... + a^(j - i)) - lambda (C(j) - C(i)) > 0

S_i: probability that candidates 1..i all stand. a: expected acceptance of a candidate not drafted yet. Looking ahead
over every j, not just i + 1, is what gets over the fixed cost of involving the drafter and over steps in C.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from adasd.core.costs import CostProfile
from adasd.core.errors import InvalidRequest

ENTROPY_NODES = 28
"""Nodes of everything that is known by entropy; evenly spaced in h / (h + ENTROPY_SCALE)."""
ENTROPY_SCALE = 2.0


def entropy_place(entropy: float) -> tuple[int, float]:
    """The node at or below an entropy (bits, >= 0) and how far, in [0, 1), it lies towards the next."""
    position = entropy / (entropy + ENTROPY_SCALE) * (ENTROPY_NODES - 1)
    node = min(int(position), ENTROPY_NODES - 2)
    return node, position - node


Numbers = Sequence[float] | NDArray[np.float64]


def between(acceptance: Numbers, node: int, beyond: float) -> float:
    """What is known at the nodes, at a place between two of them."""
    return (1.0 - beyond) * acceptance[node] + beyond * acceptance[node + 1]


def pays(rounds: Numbers, rate: float, mean: float, length: int, term: float, spent: float, bound: int) -> bool:
    """Whether some block of more than `length` candidates earns more tokens than its time is worth.

    rounds: C(0) to C(bound), seconds. term: expected tokens of candidate length + 1; each later one is expected to earn
    `mean` times as many. spent: seconds beyond C(length) that are gone either way.
    """
    gain, before = 0.0, rounds[length] + spent
    for end in range(length + 1, bound + 1):
        gain += term
        if gain > rate * (rounds[end] - before):
            return True
        term *= mean
    return False


@dataclass(frozen=True)
class Worth:
    """What candidates are expected to earn, and what they cost.

    acceptance: P(A | h) of a drafted candidate, at the ENTROPY_NODES. mean: a. rate: lambda, tokens per second; at 0
    every candidate is worth its time (a probe). costs: C. Validated on construction; raises InvalidRequest.
    """

    acceptance: tuple[float, ...]
    mean: float
    rate: float
    costs: CostProfile

    def __post_init__(self) -> None:
        if len(self.acceptance) != ENTROPY_NODES:
            raise InvalidRequest(f"acceptance must have {ENTROPY_NODES} nodes", "plan.worth.acceptance")
        given = self.mean, *self.acceptance
        if not (min(given) >= 0.0 and max(given) <= 1.0 and not math.isnan(sum(given))):
            raise InvalidRequest("acceptance and its mean must be probabilities", "plan.worth.acceptance")
        if not 0.0 <= self.rate < math.inf:
            raise InvalidRequest("rate must be finite and not negative", "plan.worth.rate")

    def accepted(self, entropy: float) -> float:
        """P(A | h), h in bits."""
        return between(self.acceptance, *entropy_place(entropy))

    def goes_on(self, length: int, stands: float, bound: int) -> bool:
        """Whether a block of `length` candidates, standing with probability `stands`, should take another step."""
        return self._pays(length, stands * self.mean, 0.0, bound)

    def takes(self, length: int, stands: float, bound: int) -> bool:
        """Whether candidate length + 1 belongs in the block, with which it stands with probability `stands`.

        Its step has been taken, and for the first one the drafter involved: that time is spent either way.
        """
        spent = self.costs.draft + (0.0 if length else self.costs.fixed)
        return self._pays(length, stands, spent, bound)

    def loss(self, length: int) -> float:
        """Tokens that a block of so many candidates is expected to cost more than it earns."""
        rounds, earned = self.costs.rounds, sum(self.mean**i for i in range(1, length + 1))
        return self.rate * (rounds[length] - rounds[0]) - earned

    def gain(self, bound: int) -> float:
        """Tokens that the best block of 1 to `bound` candidates is expected to earn beyond its time; 0 if none does."""
        rounds, best, earned, term = self.costs.rounds, 0.0, 0.0, 1.0
        for length in range(1, bound + 1):
            term *= self.mean
            earned += term
            best = max(best, earned - self.rate * (rounds[length] - rounds[0]))
        return best

    def copied(self, standing: Sequence[float], joined: bool = False) -> tuple[int, float]:
        """How many candidates to copy, and their `gain`. standing: by their number, that all of them stand. joined:
        they begin a run.
        """
        rounds = self.costs.joined_rounds if joined else self.costs.copied_rounds
        gains = (earned - self.rate * (rounds[k] - rounds[0]) for k, earned in enumerate(accumulate(standing), 1))
        return max(enumerate(gains, 1), key=lambda choice: choice[1])

    def _pays(self, length: int, term: float, spent: float, bound: int) -> bool:
        return pays(self.costs.rounds, self.rate, self.mean, length, term, spent, bound)
