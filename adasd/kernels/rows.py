"""Rows between device and host: the row of one draft position, and all rows of a block side by side."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from adasd.core.rows import PointRow, dense_row, sparse_row
from adasd.core.types import Draft, FloatArray, IntArray, Row, SamplingParams
from adasd.kernels.warping import kept_count, log_weights, mass_and_entropy, top_k, uncut, warp


class Position(NamedTuple):
    """A draft position on the host. peak: its largest logit; unless that is finite the rest means nothing."""

    peak: float
    entropy: float
    row: Row | None


def point_position(logits: Tensor) -> Position:
    """Greedy: all mass on the (lowest) arg max; the entropy is that of temperature 1. logits: [1, vocabulary]."""
    peak, token = logits.max(-1, keepdim=True)
    _, entropy = mass_and_entropy(logits, peak.to(torch.float64), 1.0)
    summary: list[float] = torch.cat([peak, entropy, token], -1)[0].tolist()
    return Position(summary[0], summary[1], PointRow(int(summary[2])))


def sparse_position(logits: Tensor, sampling: SamplingParams, support: int) -> Position:
    """The row over the `support` likeliest ids that sampling keeps. logits: [1, vocabulary], temperature above 0.

    One transfer; a second where the last id kept is one of several equals.
    """
    values, ids = logits.topk(min(support, logits.shape[-1]))
    peak = values[:, :1].to(torch.float64)
    mass, entropy = mass_and_entropy(logits, peak, sampling.temperature)
    cut = top_k(logits, peak, sampling) if 0 < sampling.top_k < logits.shape[-1] else uncut(logits, mass)
    weights = log_weights(values, peak, sampling.temperature).exp_()
    count = kept_count(values, weights, cut, sampling)
    last = values.gather(-1, count - 1)
    above, equal = (values > last).sum(-1, keepdim=True), (logits == last).sum(-1, keepdim=True)
    packed = torch.cat([peak, entropy, count, above, equal, weights, ids], -1)[0].cpu().numpy()
    if not math.isfinite(packed[0]):
        return Position(float(packed[0]), float(packed[1]), None)
    kept, certain, equals = (int(number) for number in packed[2:5])
    host_weights, host_ids = packed[5:].reshape(2, -1)[:, :kept]
    if kept < certain + equals:  # `topk` picked among the equals as it liked: the highest ids it must be
        host_ids[certain:] = (logits == last).nonzero()[certain - kept :, 1].cpu().numpy()
    return Position(float(packed[0]), float(packed[1]), _sparse(host_ids, host_weights))


def _sparse(ids: FloatArray, weights: FloatArray) -> Row:
    return sparse_row(ids.astype(np.int64), weights / weights.sum())


def dense_position(logits: Tensor, sampling: SamplingParams) -> Position:
    """The row over the whole vocabulary. logits: [1, vocabulary], temperature above 0."""
    peak = logits.amax(-1, keepdim=True).to(torch.float64)
    _, entropy = mass_and_entropy(logits, peak, sampling.temperature)
    host_peak, host_entropy = torch.cat([peak, entropy], -1)[0].tolist()
    if not math.isfinite(host_peak):
        return Position(host_peak, host_entropy, None)
    warped, _ = warp(logits, sampling, "draft")
    q: FloatArray = warped.dense()[0].cpu().numpy()
    ids = np.flatnonzero(q)
    return Position(host_peak, host_entropy, PointRow(int(ids[0])) if len(ids) == 1 else dense_row(q))


class Block(NamedTuple):
    """The rows of n candidates, padded to the widest. column: where each candidate stands in its row, int64 [n, 1].

    ids: int64 [n, k]. q: float64 [n, k], -1 in the padding.
    """

    ids: Tensor
    q: Tensor
    column: Tensor


def padded(draft: Draft, device: torch.device) -> Block:
    """All rows of a checked block on the device."""
    supports = [row.ids for row in draft.rows]
    width = max(len(support) for support in supports)
    ids: IntArray = np.zeros((len(draft), width), dtype=np.int64)
    q: FloatArray = np.full((len(draft), width), -1.0)
    for i, (row, support) in enumerate(zip(draft.rows, supports, strict=True)):
        ids[i, : len(support)] = support
        q[i, : len(support)] = row.weights / row.total
    column = [[int(np.searchsorted(support, token))] for support, token in zip(supports, draft.ids, strict=True)]
    return Block(_on(ids, device), _on(q, device), torch.tensor(column, device=device))


def scattered(row: Row, vocabulary: int, device: torch.device) -> Tensor:
    """The row as a dense distribution, float64 [vocabulary]."""
    q = torch.zeros(vocabulary, dtype=torch.float64, device=device)
    return q.index_copy_(0, _on(row.ids, device), _on(row.weights / row.total, device))


def _on(array: IntArray | FloatArray, device: torch.device) -> Tensor:
    return torch.from_numpy(array if array.flags.writeable else array.copy()).to(device)
