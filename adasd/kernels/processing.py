"""`adasd.core.processing` on the device: one scatter for all rows of a batch that are processed at all."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from adasd.core.processing import Edits
from adasd.core.types import FloatArray


def process(logits: Tensor, edits: Sequence[Edits]) -> Tensor:
    """A processed copy, float64 [rows, width]: numpy's bits. logits: [rows, width], those of the first edits first."""
    processed = logits.to(torch.float64, copy=True, memory_format=torch.contiguous_format)
    packed = torch.from_numpy(_packed(edits, logits.shape[-1])).to(logits.device)
    places, (bias, divisor, cost) = packed[0].to(torch.int64), packed[1:]
    flat = processed.view(-1)
    biased = flat[places] + bias
    penalised = torch.where(biased > 0, biased / divisor, biased * divisor)
    flat[places] = torch.where(cost == math.inf, -math.inf, penalised - cost)
    _mask(processed, edits)
    return processed


def _mask(processed: Tensor, edits: Sequence[Edits]) -> None:
    """Ban, in place, what the grammars of some of them do not allow. processed: [rows, width]."""
    start = 0
    for edit in (edit.below(processed.shape[-1]) for edit in edits):
        rows, start = slice(start, start + len(edit.cost)), start + len(edit.cost)
        if edit.allowed is not None:
            banned = torch.from_numpy(~edit.allowed).to(processed.device)
            processed[rows].masked_fill_(banned, -math.inf)


def _packed(edits: Sequence[Edits], width: int) -> FloatArray:
    """Places in the flattened rows, biases, divisors and costs, float64 [4, edited]: one transfer."""
    parts, start = list[FloatArray](), 0
    for edit in (edit.below(width) for edit in edits):
        rows = np.arange(start, start + len(edit.cost))
        places = rows[:, None] * width + edit.ids
        bias = np.broadcast_to(edit.bias, places.shape)
        parts.append(np.stack([places, bias, edit.divisor, edit.cost]).reshape(4, -1))
        start += len(rows)
    return np.concatenate(parts, axis=-1)
