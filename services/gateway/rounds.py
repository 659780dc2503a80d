"""Rounds that one message brought: committed together, told together."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain

from adasd.core.decoding import Round
from adasd.core.progress import GenerationState
from adasd.core.verdicts import TokenLogprobs


@dataclass(frozen=True, slots=True)
class Rounds:
    """each: one at least, one after another."""

    each: tuple[Round, ...]

    @property
    def number(self) -> int:
        """Of the first of them, from 0."""
        return self.each[0].number

    @property
    def count(self) -> int:
        """Runs without candidates counted as what they are."""
        return sum(step.verdict.rounds for step in self.each)

    @property
    def state(self) -> GenerationState:
        """After the last of them."""
        return self.each[-1].state

    @property
    def tokens(self) -> tuple[int, ...]:
        return tuple(chain.from_iterable(step.verdict.tokens for step in self.each))

    @property
    def logprobs(self) -> tuple[TokenLogprobs, ...]:
        return tuple(chain.from_iterable(step.verdict.logprobs for step in self.each))

    @property
    def drafted(self) -> int:
        """Candidates."""
        return sum(len(step.draft) for step in self.each)

    @property
    def accepted(self) -> int:
        """Of these candidates."""
        return sum(step.verdict.accepted for step in self.each)
