"""The rows of a block side by side on the device."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from adasd.core.types import Draft, FloatArray, IntArray, Row


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
