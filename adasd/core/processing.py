"""Penalties, biases and bans on raw logits, as few numbers about few ids; of a grammar alone, a mask of all of them.

Every row of a block is processed by the committed text and the candidates before it, so p and q stay the distributions
that sampling one token at a time would have used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from adasd.core.grammar import BoolArray, Progress
from adasd.core.types import PLAIN, FloatArray, IntArray, Processing

_NO_IDS = np.zeros(0, dtype=np.int64)
_NO_COUNTS = np.zeros(0)


@dataclass(frozen=True, slots=True, eq=False)
class Edits:
    """What becomes of some ids' logits in n rows; all others stay.

    ids: int64 [k], strictly ascending. bias: [k], added first. divisor: [n, k], then divides what is positive and
    multiplies what is not. cost: [n, k], taken off last; inf bans.
    allowed: [n, width], bans all other ids, and those past it; None allows all.
    """

    ids: IntArray
    bias: FloatArray
    divisor: FloatArray
    cost: FloatArray
    allowed: BoolArray | None = None

    def among(self, known: IntArray) -> Edits:
        """The same for the columns of rows that hold only these ids: their places. known: int64, ascending."""
        places = np.searchsorted(known, self.ids)
        held = places < len(known)
        held[held] = known[places[held]] == self.ids[held]
        return Edits(
            places[held], self.bias[held], self.divisor[:, held], self.cost[:, held], self._allowed_among(known)
        )

    def below(self, width: int) -> Edits:
        """The same for rows of `width` ids: what a model has no logit for needs no edit."""
        count = int(np.searchsorted(self.ids, width))
        allowed = self._allowed_below(width)
        if count == len(self.ids):
            return self if allowed is self.allowed else replace(self, allowed=allowed)
        return Edits(self.ids[:count], self.bias[:count], self.divisor[:, :count], self.cost[:, :count], allowed)

    def _allowed_among(self, known: IntArray) -> BoolArray | None:
        """known: int64, ascending; past the mask nothing is allowed."""
        if self.allowed is None:
            return None
        inside = int(np.searchsorted(known, self.allowed.shape[-1]))
        among = np.zeros((len(self.allowed), len(known)), dtype=np.bool_)
        among[:, :inside] = self.allowed[:, known[:inside]]
        return among

    def _allowed_below(self, width: int) -> BoolArray | None:
        """Of exactly `width` ids."""
        if self.allowed is None or self.allowed.shape[-1] == width:
            return self.allowed
        below = np.zeros((len(self.allowed), width), dtype=np.bool_)
        shared = min(width, self.allowed.shape[-1])
        below[:, :shared] = self.allowed[:, :shared]
        return below


def process(logits: FloatArray, edits: Edits) -> FloatArray:
    """A processed copy, float64 [n, width]. logits: [n, width], n as in `edits`."""
    edits = edits.below(logits.shape[-1])
    processed = logits.astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        biased = processed[:, edits.ids] + edits.bias
        penalised = np.where(biased > 0, biased / edits.divisor, biased * edits.divisor)
        processed[:, edits.ids] = np.where(np.isposinf(edits.cost), -np.inf, penalised - edits.cost)
    if edits.allowed is not None:
        processed[~edits.allowed] = -np.inf
    return processed


class Processor:
    """The processing of everything that may follow one committed text, whose ids are counted once.

    ids: committed, the first `prompt_length` of them the prompt. progress: in the grammar, where there is one.
    """

    def __init__(
        self, processing: Processing, ids: Sequence[int], prompt_length: int, progress: Progress | None = None
    ) -> None:
        self._processing = processing
        self._progress, self._text = progress, ids[prompt_length:]
        self._plain = processing == PLAIN
        self._generated = max(0, len(ids) - prompt_length)
        self._seen, self._counts = _NO_IDS, _NO_COUNTS
        if processing.penalises:
            counted = ids if processing.repetition_penalty != 1.0 else ids[prompt_length:]
            self._seen = np.unique(np.array(counted, dtype=np.int64))
            self._counts = np.zeros(len(self._seen))
            generated, counts = np.unique(np.array(ids[prompt_length:], dtype=np.int64), return_counts=True)
            self._counts[np.searchsorted(self._seen, generated)] = counts

    def edits(self, candidates: Sequence[int], rows: int = 1) -> Edits | None:
        """Of the last `rows` positions of the text and these candidates; None if nothing changes.

        Raises GrammarFault where a grammar cannot be followed any further.
        """
        if self._plain:
            return None
        edits, allowed = self._numbers(candidates, rows), self._allowed(candidates, rows)
        if allowed is None:
            return edits
        return replace(edits, allowed=allowed) if edits else _only(allowed)

    def _allowed(self, candidates: Sequence[int], rows: int) -> BoolArray | None:
        if self._progress is None:
            return None
        return self._progress.allowed([*self._text, *candidates], rows, self._processing.eos_ids)

    def _numbers(self, candidates: Sequence[int], rows: int) -> Edits | None:
        """What does not depend on a grammar."""
        before = np.arange(len(candidates) - rows + 1, len(candidates) + 1)
        banned = self._generated + before < self._processing.min_tokens
        ids = self._edited(candidates, bool(banned.any()))
        if len(ids) == 0:
            return None
        divisor, cost = self._penalties(ids, candidates, before)
        if banned.any():
            cost[np.ix_(banned, np.searchsorted(ids, self._processing.eos_ids))] = np.inf
        bias = np.zeros(len(ids))
        for token, value in self._processing.logit_bias:
            bias[np.searchsorted(ids, token)] = value
        return Edits(ids, bias, divisor, cost)

    def _edited(self, candidates: Sequence[int], bans: bool) -> IntArray:
        """All ids that any of the rows edits, ascending."""
        processing = self._processing
        ids = [token for token, _ in processing.logit_bias]
        ids += processing.eos_ids if bans else ()
        ids += candidates if processing.penalises else ()
        return np.union1d(self._seen, np.array(ids, dtype=np.int64)) if ids else self._seen

    def _penalties(self, ids: IntArray, candidates: Sequence[int], before: IntArray) -> tuple[FloatArray, FloatArray]:
        """Divisor and cost of every id in every row. before: candidates before each row, [n]."""
        seen, counts = np.zeros((len(before), len(ids)), dtype=np.bool_), np.zeros((len(before), len(ids)))
        if self._processing.penalises:
            places = np.searchsorted(ids, self._seen)
            seen[:, places], counts[:, places] = True, self._counts
            for offset, place in enumerate(np.searchsorted(ids, np.array(candidates, dtype=np.int64))):
                counts[before > offset, place] += 1
            seen |= counts > 0
        cost = self._processing.frequency_penalty * counts + self._processing.presence_penalty * (counts > 0)
        return np.where(seen, self._processing.repetition_penalty, 1.0), cost


def _only(allowed: BoolArray) -> Edits:
    """A mask and nothing else."""
    none = np.zeros((len(allowed), 0))
    return Edits(np.zeros(0, dtype=np.int64), np.zeros(0), none, none, allowed)
