"""`adasd.core.backend` in torch: logits stay where the model left them, the host sees scalars, ids and sparse rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor

from adasd.core.backend import Proposal, TargetRows, each, sound
from adasd.core.divergence import js_distance, js_divergence_on_support
from adasd.core.draws import CounterDraws, DrawKey
from adasd.core.errors import NumericalFault
from adasd.core.host import DEFAULT_SUPPORT
from adasd.core.processing import Edits
from adasd.core.sampling import fault_of
from adasd.core.types import Draft, Evidence, FloatArray, Row, SamplingParams
from adasd.core.verdicts import TokenLogprobs
from adasd.kernels import drawing, loops
from adasd.kernels.divergence import js_divergence_on_support as js_divergences
from adasd.kernels.draws import gumbel
from adasd.kernels.evidence import evidence as evidence_of
from adasd.kernels.logprobs import token_logprobs
from adasd.kernels.positions import Columns, Position, dense_positions, point_positions, sparse_positions
from adasd.kernels.processing import process
from adasd.kernels.rows import padded
from adasd.kernels.warping import Warped, forced, log_weights, uncuts, warp
from adasd.kernels.whole import Whole


@dataclass(frozen=True, slots=True)
class GreedyTarget:
    """Target rows at temperature 0: all mass on one id each, so nothing more is asked of the device.

    tokens: the (lowest) arg max of every row. logits: as the model gave them, [rows, vocabulary].
    """

    tokens: tuple[int, ...]
    logits: Tensor

    def evidence(self, draft: Draft) -> Iterable[Evidence]:
        return (self._evidence(i, token, draft.rows[i]) for i, token in enumerate(draft.ids))

    def _evidence(self, offset: int, token: int, row: Row) -> Evidence:
        p = (row.ids == self.tokens[offset]).astype(np.float64)
        distance = js_distance(js_divergence_on_support(p, row.weights / row.total))
        return Evidence(float(token == self.tokens[offset]), row.weight(token) / row.total, 1.0, distance)

    def emit(self, offset: int, minus: Row | None, key: DrawKey, draws: CounterDraws) -> int:
        """The row's only id: it also holds whatever residual there is."""
        return self.tokens[offset]

    def coupled(self, position: int, draws: CounterDraws) -> Sequence[int]:
        return self.tokens

    def logprobs(self, tokens: Sequence[int], top: int) -> Sequence[TokenLogprobs]:
        return token_logprobs(self.logits, tokens, top)


@dataclass(frozen=True, slots=True)
class DeviceTarget:
    """Warped target rows on the device.

    p_max: the largest probability of each, [rows]. logits: as the model gave them, [rows, vocabulary].
    """

    warped: Warped
    p_max: FloatArray
    logits: Tensor

    def evidence(self, draft: Draft) -> Sequence[Evidence]:
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
        return self.warped.draw(offset, minus, draws.uniform(key))

    def coupled(self, position: int, draws: CounterDraws) -> Sequence[int]:
        warped = self.warped
        ids = warped.support()  # only these need noise: few, unless sampling cuts nothing
        kept = warped.kept(warped.logits[:, ids], ids)
        scores = log_weights(warped.logits[:, ids], warped.peak, warped.temperature)
        keys = [draws.gumbel_key(position + i) for i in range(len(scores))]
        scores.masked_fill_(~kept, -math.inf).add_(gumbel(keys, ids))
        tokens: list[int] = ids[scores.argmax(-1)].tolist()
        return tokens

    def logprobs(self, tokens: Sequence[int], top: int) -> Sequence[TokenLogprobs]:
        return token_logprobs(self.logits, tokens, top)

    @property
    def _device(self) -> torch.device:
        return self.logits.device


@dataclass(frozen=True, slots=True)
class WholeTarget:
    """Target rows on the CPU of which sampling cuts nothing: what every one of torch's small operations would cost is
    more than all that is done here.

    whole: processed logits without +inf, [.., vocabulary], of which the rows from `first` on are these. logits: as the
    model gave them, [rows, vocabulary].
    """

    whole: Whole
    first: int
    sampling: SamplingParams
    logits: Tensor

    def evidence(self, draft: Draft) -> Iterable[Evidence]:
        return (self._evidence(offset, token, draft.rows[offset]) for offset, token in enumerate(draft.ids))

    def _evidence(self, offset: int, token: int, row: Row) -> Evidence:
        logits, peak, mass = self._row(offset)
        p_x, divergence = evidence_of(logits, peak, mass, self.sampling.temperature, row, token)
        return Evidence(p_x, row.weight(token) / row.total, 1.0 / mass, js_distance(divergence))

    def _row(self, offset: int) -> tuple[FloatArray, float, float]:
        """Its logits, [vocabulary], the largest of them, and the sum of its weights."""
        place = self.first + offset
        return self.whole.logits[place], float(self.whole.peaks[place]), self.whole.mass(place)

    def emit(self, offset: int, minus: Row | None, key: DrawKey, draws: CounterDraws) -> int:
        logits, peak, mass = self._row(offset)
        blocks, temperature = self.whole.blocks(self.first + offset), self.sampling.temperature
        if minus is None and logits.dtype == np.float32:
            return drawing.drawn(logits, temperature, peak, blocks, draws.uniform(key))
        kept = drawing.Kept(peak, temperature, -math.inf, 0, mass)
        return drawing.draw(logits, kept, blocks, minus, draws.uniform(key))

    def coupled(self, position: int, draws: CounterDraws) -> Sequence[int]:
        rows = self.whole.logits[self.first : self.first + len(self.logits)]
        warped, summary = warp(torch.from_numpy(rows), self.sampling)
        return DeviceTarget(warped, 1.0 / summary.masses, self.logits).coupled(position, draws)

    def logprobs(self, tokens: Sequence[int], top: int) -> Sequence[TokenLogprobs]:
        return token_logprobs(self.logits, tokens, top)


@dataclass(frozen=True, slots=True)
class DeviceKernels:
    """Logits of any floating dtype.

    support: entries of a draft row; None keeps the whole vocabulary (dense rows).
    columns: what the columns of a draft's logits stand for, if they are no ids themselves.
    """

    support: int | None = DEFAULT_SUPPORT
    columns: Columns | None = None

    def propose(self, logits: Tensor, sampling: SamplingParams, edits: Edits | None = None) -> Proposal:
        return sound(self.propose_batch([logits], [sampling], [edits])[0])

    def propose_batch(
        self, rows: Sequence[Tensor], samplings: Sequence[SamplingParams], edits: Sequence[Edits | None] = ()
    ) -> list[Proposal | NumericalFault]:
        if len(rows) == 0:
            return []
        logits = (rows[0][None] if len(rows) == 1 else torch.stack([*rows])).detach()
        found: dict[int, Proposal | NumericalFault] = {}
        for places, sampling, changes in alike(samplings, each(edits, len(rows))):
            alike_rows = logits if len(places) == len(logits) else logits[places]
            if changes:
                alike_rows = process(alike_rows, [self._placed(change) for change in changes])
            found.update(zip(places, map(_proposal, self._positions(alike_rows, sampling)), strict=True))
        return [found[place] for place in range(len(samplings))]

    def _placed(self, edits: Edits) -> Edits:
        """Edits of ids as those of columns."""
        return edits if self.columns is None else edits.among(self.columns.ids)

    def _positions(self, logits: Tensor, sampling: SamplingParams) -> list[Position]:
        positions = self._finite(logits, sampling)
        endless = [i for i, position in enumerate(positions) if position.peak == math.inf]
        if endless:
            for i, position in zip(endless, self._finite(forced(logits[endless]), sampling), strict=True):
                positions[i] = position
        return positions

    def _finite(self, logits: Tensor, sampling: SamplingParams) -> list[Position]:
        if sampling.greedy:
            return point_positions(logits, self.columns)
        if self.support is None:
            return dense_positions(logits, sampling, self.columns)
        return sparse_positions(logits, sampling, self.support, self.columns)

    def target(self, logits: Tensor, sampling: SamplingParams, edits: Edits | None = None) -> TargetRows[CounterDraws]:
        return sound(self.target_batch([logits], [sampling], [edits])[0])

    def target_batch(
        self, logits: Sequence[Tensor], samplings: Sequence[SamplingParams], edits: Sequence[Edits | None] = ()
    ) -> list[TargetRows[CounterDraws] | NumericalFault]:
        found: dict[int, TargetRows[CounterDraws] | NumericalFault] = {}
        for places, sampling, changes in alike(samplings, each(edits, len(logits))):
            blocks = [logits[place].detach() for place in places]
            found.update(zip(places, _targets(blocks, sampling, changes), strict=True))
        return [found[place] for place in range(len(samplings))]


def alike(
    samplings: Sequence[SamplingParams], edits: Sequence[Edits | None]
) -> list[tuple[list[int], SamplingParams, list[Edits]]]:
    """Places in the batch that are warped alike, how, and what is edited there: at all of them or at none.

    Processed rows are float64, so they stay apart from those that need no copy. Seeds do not matter here.
    """
    groups: dict[tuple[float, ...], list[int]] = {}
    for place, (sampling, edit) in enumerate(zip(samplings, edits, strict=True)):
        key = (sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p, edit is not None)
        groups.setdefault(key, []).append(place)
    return [
        (places, samplings[places[0]], [edit for place in places if (edit := edits[place]) is not None])
        for places in groups.values()
    ]


def _proposal(position: Position) -> Proposal | NumericalFault:
    if math.isnan(position.peak):
        return NumericalFault("the draft model gave NaN logits", "draft")
    return Proposal(0.0, None) if position.peak == -math.inf else Proposal(position.entropy, position.row)


def _targets(
    blocks: Sequence[Tensor], sampling: SamplingParams, edits: Sequence[Edits]
) -> Iterator[TargetRows[CounterDraws] | NumericalFault]:
    """The blocks of one group, processed and warped together. edits: of each block, or none."""
    together = blocks[0] if len(blocks) == 1 else torch.cat(list(blocks))
    if edits:
        together = process(together, edits)
    if sampling.greedy:
        rows_of, peaks = _greedy(together)
    elif loops.take(together) and uncuts(sampling, together.shape[-1]):
        rows_of, peaks = _whole(together, sampling, [len(block) for block in blocks])
    else:
        rows_of, peaks = _sampled(together, sampling)
    start = 0
    for block in blocks:
        rows = slice(start, start + len(block))
        yield fault_of(peaks[rows], "target") or rows_of(rows, block)
        start = rows.stop


RowsOf = Callable[[slice, Tensor], TargetRows[CounterDraws]]
"""Some of the rows that were warped together; the tensor is what the model gave there."""


def _greedy(logits: Tensor) -> tuple[RowsOf, FloatArray]:
    peaks, tokens = torch.stack([part.to(torch.float64) for part in logits.max(-1)]).cpu().numpy()
    ids = tuple(int(token) for token in tokens)
    return lambda rows, given: GreedyTarget(ids[rows], given), peaks


def _whole(logits: Tensor, sampling: SamplingParams, lengths: Sequence[int]) -> tuple[RowsOf, FloatArray]:
    """lengths: of the blocks. Their first rows are needed in any case."""
    whole = Whole(logits.numpy(), sampling.temperature)
    if math.inf in whole.peaks.tolist():  # numpy takes longer to say so of a few
        return _whole(forced(logits), sampling, lengths)
    whole.weigh([end - length for end, length in zip(accumulate(lengths), lengths, strict=True)])
    return lambda rows, given: WholeTarget(whole, rows.start, sampling, given), whole.peaks


def _sampled(logits: Tensor, sampling: SamplingParams) -> tuple[RowsOf, FloatArray]:
    warped, summary = warp(logits, sampling)
    return lambda rows, given: DeviceTarget(warped.rows(rows), 1.0 / summary.masses[rows], given), summary.peaks
