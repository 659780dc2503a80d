"""Draft positions: from a model's logits on the device to entropies and rows on the host."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from adasd.core.errors import InvalidRequest
from adasd.core.rows import PointRow, SparseRow, dense_row, sparse_rows
from adasd.core.types import FloatArray, IntArray, Row, SamplingParams
from adasd.kernels import loops
from adasd.kernels.entries import entries
from adasd.kernels.selection import likeliest
from adasd.kernels.warping import kept_count, log_weights, mass_and_entropy, top_k, uncut, uncuts, warp


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """The ids that the columns of compact logits stand for; all other ids of the vocabulary are at -inf.

    ids: int64 [width], strictly ascending within [0, vocabulary). Raises InvalidRequest (`columns`).
    """

    ids: IntArray
    vocabulary: int

    def __post_init__(self) -> None:
        bounded = np.concatenate([[-1], self.ids, [self.vocabulary]])
        if np.any(np.diff(bounded) <= 0):
            raise InvalidRequest(f"the ids of a head must ascend strictly within [0, {self.vocabulary})", "columns")

    def scattered(self, q: FloatArray) -> FloatArray:
        """Probabilities of the columns as those of the vocabulary. q: [width]."""
        dense = np.zeros(self.vocabulary, dtype=np.float64)
        dense[self.ids] = q
        return dense


class Position(NamedTuple):
    """A draft position on the host. peak: its largest logit; unless that is finite the rest means nothing."""

    peak: float
    entropy: float
    row: Row | None


def point_positions(logits: Tensor, columns: Columns | None) -> list[Position]:
    """Greedy: all mass on the (lowest) arg max; the entropy is that of temperature 1. logits: [n, width]."""
    peak, token = logits.max(-1, keepdim=True)
    _, entropy = mass_and_entropy(logits, peak.to(torch.float64), 1.0)
    summary: FloatArray = torch.cat([peak, entropy, token], -1).cpu().numpy()
    ids = _ids(summary[:, 2].astype(np.int64), columns).tolist()
    return [Position(float(row[0]), float(row[1]), PointRow(token)) for row, token in zip(summary, ids, strict=True)]


class _Listed(NamedTuple):
    """The likeliest columns of n positions, most likely first.

    last: on the device, the least logit that sampling keeps, [n, 1]; the rest is on the host.
    counts: int64 [n, 3], how many of the columns are kept, how many lie above `last`, how many equal it.
    weights, places: of the columns, [n, k].
    """

    last: Tensor
    peaks: FloatArray
    entropies: FloatArray
    counts: IntArray
    weights: FloatArray
    places: IntArray


def sparse_positions(logits: Tensor, sampling: SamplingParams, support: int, columns: Columns | None) -> list[Position]:
    """The rows over the `support` likeliest ids that sampling keeps. logits: [n, width], temperature above 0."""
    if loops.take(logits) and uncuts(sampling, logits.shape[-1]):
        return _positions_here(logits.numpy(), sampling.temperature, support, columns)
    return _positions(logits, sampling, support, columns)


def _positions_here(logits: Any, temperature: float, support: int, columns: Columns | None) -> list[Position]:
    """On the CPU, where sampling cuts nothing: each of torch's small operations costs more than its work."""
    found = entries(logits, temperature, support, None if columns is None else columns.ids)
    rows = map(row_of, found.ids, found.weights, found.counts.tolist())
    return [Position(*one) for one in zip(found.peaks.tolist(), found.entropies.tolist(), rows, strict=True)]


def row_of(ids: IntArray, weights: IntArray, count: int) -> Row | None:
    """The row of the first so many entries."""
    if count <= 1:
        return PointRow(int(ids[0])) if count else None
    return SparseRow(ids[:count], weights[:count])


def _positions(logits: Tensor, sampling: SamplingParams, support: int, columns: Columns | None) -> list[Position]:
    """One transfer; a second where the last id kept is one of more equals than are listed."""
    listed = _listed(logits, sampling, support)
    finite = np.isfinite(listed.peaks)
    _settle(listed, np.flatnonzero(finite), logits)
    kept = np.arange(listed.places.shape[-1]) < listed.counts[:, :1]
    rows = sparse_rows(_ids(listed.places, columns), np.where(kept & finite[:, None], listed.weights, ~finite[:, None]))
    return [
        Position(peak, entropy, row if math.isfinite(peak) else None)
        for peak, entropy, row in zip(listed.peaks.tolist(), listed.entropies.tolist(), rows, strict=True)
    ]


def _listed(logits: Tensor, sampling: SamplingParams, support: int) -> _Listed:
    width = logits.shape[-1]
    values, places = likeliest(logits, min(support + 1, width))  # one more, to see whether equals are left out
    peak = values[:, :1].to(torch.float64)
    mass, entropy = mass_and_entropy(logits, peak, sampling.temperature)
    cut = top_k(logits, peak, sampling) if 0 < sampling.top_k < width else uncut(logits, mass)
    weights = log_weights(values, peak, sampling.temperature).exp_()
    count = kept_count(values[:, :support], weights[:, :support], cut, sampling)
    last = values.gather(-1, count - 1)
    above, equal = (values > last).sum(-1, keepdim=True), (values == last).sum(-1, keepdim=True)
    packed: FloatArray = torch.cat([peak, entropy, count, above, equal, weights, places], -1).cpu().numpy()
    shares, host_places = np.hsplit(packed[:, 5:], 2)
    counts = packed[:, 2:5].astype(np.int64)
    return _Listed(last, packed[:, 0], packed[:, 1], counts, shares, host_places.astype(np.int64))


def _settle(listed: _Listed, rows: IntArray, logits: Tensor) -> None:
    """Of several equals at the end of a row the highest are kept; puts them where `topk` listed any.

    rows: int64 [m], the ones to look at.
    """
    counts = listed.counts[rows]
    open_rows = rows[counts[:, 0] < counts[:, 1:].sum(-1)]
    unlisted = _equals(listed, open_rows, logits)
    for i, (kept, above, equal) in zip(open_rows.tolist(), listed.counts[open_rows].tolist(), strict=True):
        equals = unlisted.get(i, np.sort(listed.places[i, above : above + equal]))
        listed.places[i, above:kept] = equals[above - kept :]


def _equals(listed: _Listed, rows: IntArray, logits: Tensor) -> Mapping[int, IntArray]:
    """All columns equal to `last`, ascending, of the rows where some may not be listed. rows: int64 [m]."""
    length = listed.places.shape[-1]
    at_the_end = listed.counts[rows, 1:].sum(-1) == length
    if length == logits.shape[-1] or not at_the_end.any():
        return {}
    wanted = rows[at_the_end]
    on_device = torch.from_numpy(wanted).to(logits.device)
    row, place = (logits[on_device] == listed.last[on_device]).nonzero().cpu().numpy().T
    return {i: place[row == j] for j, i in enumerate(wanted.tolist())}


def _ids(places: IntArray, columns: Columns | None) -> IntArray:
    return places if columns is None else columns.ids[places]


def dense_positions(logits: Tensor, sampling: SamplingParams, columns: Columns | None) -> list[Position]:
    """The rows over the whole vocabulary. logits: [n, width], temperature above 0."""
    warped, summary = warp(logits, sampling)
    _, entropy = mass_and_entropy(warped.logits, warped.peak, sampling.temperature)
    packed: FloatArray = torch.cat([entropy, warped.dense()], -1).cpu().numpy()
    return [
        Position(float(peak), float(row[0]), _dense(row[1:], columns) if math.isfinite(peak) else None)
        for peak, row in zip(summary.peaks, packed, strict=True)
    ]


def _dense(q: FloatArray, columns: Columns | None) -> Row:
    kept = np.flatnonzero(q)
    if len(kept) == 1:
        return PointRow(int(_ids(kept, columns)[0]))
    return dense_row(q if columns is None else columns.scattered(q))
