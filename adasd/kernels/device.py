"""`adasd.core.backend` in torch: logits stay where the model left them, the host sees scalars, ids and sparse rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from adasd.core.backend import Proposal, TargetRows
from adasd.core.divergence import js_distance, js_divergence_on_support
from adasd.core.draws import CounterDraws, DrawKey
from adasd.core.errors import NumericalFault
from adasd.core.host import DEFAULT_SUPPORT
from adasd.core.rows import check_block
from adasd.core.sampling import check_peaks
from adasd.core.types import Draft, Evidence, FloatArray, Row, SamplingParams
from adasd.kernels.divergence import js_divergence_on_support as js_divergences
from adasd.kernels.draws import gumbel, inverse_cdf
from adasd.kernels.rows import Position, dense_position, padded, point_position, scattered, sparse_position
from adasd.kernels.warping import Warped, forced, log_weights, warp


@dataclass(frozen=True, slots=True)
class GreedyTarget:
    """Target rows at temperature 0: all mass on one id each, so nothing more is asked of the device.

    tokens: the (lowest) arg max of every row. vocabulary: width of the logits.
    """

    tokens: tuple[int, ...]
    vocabulary: int

    def evidence(self, draft: Draft) -> Sequence[Evidence]:
        check_block(draft, self.vocabulary)
        return [self._evidence(i, token, draft.rows[i]) for i, token in enumerate(draft.ids)]

    def _evidence(self, offset: int, token: int, row: Row) -> Evidence:
        p = (row.ids == self.tokens[offset]).astype(np.float64)
        distance = js_distance(js_divergence_on_support(p, row.weights / row.total))
        return Evidence(float(token == self.tokens[offset]), row.weight(token) / row.total, 1.0, distance)

    def emit(self, offset: int, minus: Row | None, key: DrawKey, draws: CounterDraws) -> int:
        """The row's only id: it also holds whatever residual there is."""
        return self.tokens[offset]

    def coupled(self, position: int, draws: CounterDraws) -> Sequence[int]:
        return self.tokens


@dataclass(frozen=True, slots=True)
class DeviceTarget:
    """Warped target rows on the device. p_max: the largest probability of each, [rows]."""

    warped: Warped
    p_max: FloatArray

    def evidence(self, draft: Draft) -> Sequence[Evidence]:
        check_block(draft, self._vocabulary)
        if len(draft) == 0:
            return []
        block = padded(draft, self._device)
        p = self.warped.rows(slice(len(draft))).at(block.ids) * (block.q >= 0)
        found = torch.stack([p.gather(-1, block.column)[:, 0], js_divergences(p, block.q.clamp(min=0.0))], -1).tolist()
        return [
            Evidence(p_x, row.weight(token) / row.total, float(p_max), js_distance(divergence))
            for (p_x, divergence), token, row, p_max in zip(found, draft.ids, draft.rows, self.p_max, strict=False)
        ]

    def emit(self, offset: int, minus: Row | None, key: DrawKey, draws: CounterDraws) -> int:
        p = self.warped.rows(slice(offset, offset + 1)).dense()[0]
        if minus is not None:
            residual = (p - scattered(minus, self._vocabulary, self._device)).clamp_(min=0.0)
            p = torch.where(residual.any(), residual, p)
        return int(inverse_cdf(p, draws.uniform(key)))

    def coupled(self, position: int, draws: CounterDraws) -> Sequence[int]:
        warped = self.warped
        kept = warped.kept(warped.logits, warped.ids())
        ids = kept.any(0).nonzero()[:, 0]  # only these need noise: few, unless sampling cuts nothing
        scores = log_weights(warped.logits[:, ids], warped.peak, warped.temperature)
        keys = [draws.gumbel_key(position + i) for i in range(len(scores))]
        scores.masked_fill_(~kept[:, ids], -math.inf).add_(gumbel(keys, ids))
        tokens: list[int] = ids[scores.argmax(-1)].tolist()
        return tokens

    @property
    def _vocabulary(self) -> int:
        return self.warped.logits.shape[-1]

    @property
    def _device(self) -> torch.device:
        return self.warped.logits.device


@dataclass(frozen=True, slots=True)
class DeviceKernels:
    """support: entries of a draft row; None keeps the whole vocabulary (dense rows). Logits of any floating dtype."""

    support: int | None = DEFAULT_SUPPORT

    def propose(self, logits: Tensor, sampling: SamplingParams) -> Proposal:
        row = logits.detach()[None]
        position = self._position(row, sampling)
        if position.peak == math.inf:
            position = self._position(forced(row), sampling)
        if position.peak == -math.inf:
            return Proposal(0.0, None)
        if math.isnan(position.peak):
            raise NumericalFault("the draft model gave NaN logits", "draft")
        return Proposal(position.entropy, position.row)

    def _position(self, logits: Tensor, sampling: SamplingParams) -> Position:
        if sampling.greedy:
            return point_position(logits)
        if self.support is None:
            return dense_position(logits, sampling)
        return sparse_position(logits, sampling, self.support)

    def target(self, logits: Tensor, sampling: SamplingParams) -> TargetRows[CounterDraws]:
        rows = logits.detach()
        if sampling.greedy:
            return _greedy(rows)
        warped, masses = warp(rows, sampling, "target")
        return DeviceTarget(warped, 1.0 / masses)


def _greedy(logits: Tensor) -> GreedyTarget:
    peaks, tokens = torch.stack([part.to(torch.float64) for part in logits.max(-1)]).cpu().numpy()
    check_peaks(peaks, "target")
    return GreedyTarget(tuple(int(token) for token in tokens), logits.shape[-1])
