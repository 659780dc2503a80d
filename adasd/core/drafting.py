"""How a block of candidates comes about: the paper's generation step (AdaSD, arXiv 2512.11280, section 4)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from adasd.core.backend import Proposal
from adasd.core.draws import DrawKey, Draws, Purpose
from adasd.core.rows import PointRow
from adasd.core.types import Draft, DraftPlan, Row

Propose = Callable[[Sequence[int]], Proposal | None]
"""The draft's row after the committed context and these candidates; None to give up early."""


class Drafted(NamedTuple):
    """Candidates that were drafted in one go, from where a block stood: as `Block.take` would have, one by one.

    stands: as of the block after them. ended: the block is done.
    """

    ids: Sequence[int]
    entropies: Sequence[float]
    rows: Sequence[Row]
    stands: float
    ended: bool


@dataclass(slots=True)
class Block:
    """A block in the making: up to the plan's bound, an EOS, an empty row, or the candidate whose entropy exceeds the
    threshold.

    A plan that weighs costs also ends it before a step or a candidate that is not worth its time.
    A candidate, once sampled, is in the block: leaving one out after looking at it would not be exact.

    base: committed ids before it. stands: with what probability all its candidates stand, as far as that is weighed.
    """

    plan: DraftPlan
    base: int
    draws: Draws
    eos_ids: Collection[int]
    ids: list[int] = field(default_factory=list)
    entropies: list[float] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    stands: float = 1.0
    ended: bool = False

    @property
    def goes_on(self) -> bool:
        """Whether it wants the draft's row after its candidates."""
        return not self.ended and self.plan.goes_on(len(self.ids), self.stands)

    def take(self, outcome: Proposal | Drafted | None) -> None:
        """The next row, or what was made of several."""
        if isinstance(outcome, Drafted):
            self.ids += outcome.ids
            self.entropies += outcome.entropies
            self.rows += outcome.rows
            self.stands, self.ended = outcome.stands, outcome.ended
        elif outcome is None or outcome.row is None:
            self.ended = True
        else:
            self._take(outcome.entropy, outcome.row)

    def _take(self, entropy: float, row: Row) -> None:
        self.stands *= self.plan.standing(entropy)
        if not self.plan.takes(len(self.ids), self.stands):
            self.ended = True
            return
        token, kept = _draw(row, self.plan.coupled, self.base, len(self.ids), self.draws)
        self.ids.append(token)
        self.entropies.append(entropy)
        self.rows.append(kept)
        self.ended = token in self.eos_ids or self.plan.stops(entropy)

    def draft(self) -> Draft:
        """As it is sent."""
        return Draft(tuple(self.ids), tuple(self.entropies), tuple(self.rows))


def draft_block(propose: Propose, plan: DraftPlan, base: int, draws: Draws, eos_ids: Collection[int]) -> Draft:
    """One block on its own; see `Block`."""
    block = Block(plan, base, draws, eos_ids)
    while block.goes_on:
        block.take(propose(block.ids))
    return block.draft()


def _draw(row: Row, coupled: bool, base: int, offset: int, draws: Draws) -> tuple[int, Row]:
    if not coupled:
        index = draws.categorical(DrawKey(base, offset, Purpose.DRAFT), row.weights)
        return int(row.ids[index]), row
    kept = row.weights > 0
    ids = row.ids[kept]
    token = int(ids[np.argmax(np.log(row.weights[kept]) + draws.gumbel(base + offset, ids))])
    return token, PointRow(token)  # given the noise the candidate is certain, and nothing else of q is needed
