"""How a block of candidates comes about: the paper's generation step (AdaSD, arXiv 2512.11280, section 4)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Sequence

import numpy as np

from adasd.core.backend import Proposal
from adasd.core.draws import DrawKey, Draws, Purpose
from adasd.core.rows import PointRow
from adasd.core.types import Draft, DraftPlan, Row

Propose = Callable[[Sequence[int]], Proposal | None]
"""The draft's row after the committed context and these candidates; None to give up early."""

Drafting = Generator[Sequence[int], Proposal | None, Draft]
"""A block in the making: yields its candidates so far, is sent the draft's row after them, returns the block."""


def draft_block(propose: Propose, plan: DraftPlan, base: int, draws: Draws, eos_ids: Collection[int]) -> Draft:
    """One block on its own; see `drafting`."""
    block = drafting(plan, base, draws, eos_ids)
    try:
        candidates = next(block)
        while True:
            candidates = block.send(propose(candidates))
    except StopIteration as end:
        draft: Draft = end.value
        return draft


def drafting(plan: DraftPlan, base: int, draws: Draws, eos_ids: Collection[int]) -> Drafting:
    """Draft until the plan's bound, an EOS, an empty row, or the candidate whose entropy exceeds the threshold.

    A plan that weighs costs also ends it before a step or a candidate that is not worth its time.
    A candidate, once sampled, is in the block: leaving one out after looking at it would not be exact.
    """
    ids: list[int] = []
    entropies: list[float] = []
    rows: list[Row] = []
    stands = 1.0
    while plan.goes_on(len(ids), stands):
        proposal = yield ids
        if proposal is None or proposal.row is None:
            break
        stands *= plan.standing(proposal.entropy)
        if not plan.takes(len(ids), stands):
            break
        token, row = _draw(proposal.row, plan.coupled, base, len(ids), draws)
        ids.append(token)
        entropies.append(proposal.entropy)
        rows.append(row)
        if token in eos_ids or plan.stops(proposal.entropy):
            break
    return Draft(tuple(ids), tuple(entropies), tuple(rows))


def _draw(row: Row, coupled: bool, base: int, offset: int, draws: Draws) -> tuple[int, Row]:
    if not coupled:
        index = draws.categorical(DrawKey(base, offset, Purpose.DRAFT), row.weights)
        return int(row.ids[index]), row
    kept = row.weights > 0
    ids = row.ids[kept]
    token = int(ids[np.argmax(np.log(row.weights[kept]) + draws.gumbel(base + offset, ids))])
    return token, PointRow(token)  # given the noise the candidate is certain, and nothing else of q is needed
