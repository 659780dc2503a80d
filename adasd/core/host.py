"""`adasd.core.backend` in numpy: the reference that `adasd.kernels` is held against, and what the toy runtime uses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from adasd.core.backend import Proposal, TargetRows, each
from adasd.core.divergence import js_distance, js_divergence_sparse
from adasd.core.draws import DrawKey, Draws
from adasd.core.errors import NumericalFault
from adasd.core.logprobs import token_logprobs
from adasd.core.processing import Edits, process
from adasd.core.rows import PointRow, dense_row, probabilities, sparse_row
from adasd.core.sampling import by_likelihood, check_logits, entropy_bits, softmax, warp
from adasd.core.types import Draft, Evidence, FloatArray, Row, SamplingParams
from adasd.core.verdicts import TokenLogprobs

T = TypeVar("T")

DEFAULT_SUPPORT = 128
"""Entries of a sparse row: the draft samples from its `support` most likely ids only."""


@dataclass(frozen=True, slots=True)
class HostTarget:
    """Target rows, warped and as the model gave them. p, logits: [n + 1, vocabulary]."""

    p: FloatArray
    logits: FloatArray

    def evidence(self, draft: Draft) -> Sequence[Evidence]:
        return [self._evidence(i, token, draft.rows[i]) for i, token in enumerate(draft.ids)]

    def _evidence(self, offset: int, token: int, row: Row) -> Evidence:
        p = self.p[offset]
        distance = js_distance(js_divergence_sparse(p, row))
        return Evidence(float(p[token]), row.weight(token) / row.total, float(p.max()), distance)

    def emit(self, offset: int, minus: Row | None, key: DrawKey, draws: Draws) -> int:
        return draws.categorical(key, self.residual(offset, minus))

    def residual(self, offset: int, minus: Row | None) -> FloatArray:
        """What a row is emitted from, not normalised: [p - q]+, or p without q and where that is empty."""
        p: FloatArray = self.p[offset]
        if minus is None:
            return p
        residual: FloatArray = np.maximum(p - probabilities(minus, len(p)), 0.0)
        return residual if residual.any() else p

    def coupled(self, position: int, draws: Draws) -> Sequence[int]:
        return [_coupled(p, position + i, draws) for i, p in enumerate(self.p)]

    def logprobs(self, tokens: Sequence[int], top: int) -> Sequence[TokenLogprobs]:
        return token_logprobs(self.logits, tokens, top)


def _coupled(p: FloatArray, position: int, draws: Draws) -> int:
    ids = np.flatnonzero(p)
    return int(ids[np.argmax(np.log(p[ids]) + draws.gumbel(position, ids))])


@dataclass(frozen=True, slots=True)
class HostKernels:
    """support: entries of a draft row; None keeps the whole vocabulary (dense rows)."""

    support: int | None = DEFAULT_SUPPORT

    def propose(self, logits: FloatArray, sampling: SamplingParams, edits: Edits | None = None) -> Proposal:
        if edits is not None:
            logits = process(logits[None], edits)[0]
        if np.isneginf(logits).all():
            return Proposal(0.0, None)
        check_logits(logits, "draft")
        entropy = entropy_bits(softmax(logits.astype(np.float64), sampling.temperature or 1.0))
        return Proposal(entropy, self._row(logits, warp(logits, sampling)))

    def propose_batch(
        self, rows: Sequence[FloatArray], samplings: Sequence[SamplingParams], edits: Sequence[Edits | None] = ()
    ) -> list[Proposal | NumericalFault]:
        return [_outcome(self.propose, *one) for one in zip(rows, samplings, each(edits, len(rows)), strict=True)]

    def _row(self, logits: FloatArray, q: FloatArray) -> Row:
        ids = np.flatnonzero(q)
        if len(ids) == 1:
            return PointRow(int(ids[0]))
        if self.support is None:
            return dense_row(q)
        if len(ids) > self.support:
            ids = np.sort(ids[by_likelihood(logits[ids])[: self.support]])
        return sparse_row(ids, q[ids] / q[ids].sum())

    def target(self, logits: FloatArray, sampling: SamplingParams, edits: Edits | None = None) -> TargetRows[Draws]:
        processed = logits if edits is None else process(logits, edits)
        check_logits(processed, "target")
        return HostTarget(np.stack([warp(row, sampling) for row in processed]), logits)

    def target_batch(
        self, logits: Sequence[FloatArray], samplings: Sequence[SamplingParams], edits: Sequence[Edits | None] = ()
    ) -> list[TargetRows[Draws] | NumericalFault]:
        return [_outcome(self.target, *one) for one in zip(logits, samplings, each(edits, len(logits)), strict=True)]


def _outcome(
    rule: Callable[[FloatArray, SamplingParams, Edits | None], T],
    logits: FloatArray,
    sampling: SamplingParams,
    edits: Edits | None,
) -> T | NumericalFault:
    try:
        return rule(logits, sampling, edits)
    except NumericalFault as fault:
        return fault
