"""Attention of a ragged batch: the tokens of many sessions in one row, each reading its own session's KV."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from adasd.runtime.kv import SessionKV

FEW = 32
"""Up to so many queries plain matrix products beat the fused kernel, which is made for many."""


@dataclass(frozen=True, slots=True)
class Span:
    """One session's tokens in the row: `start` to `end` there, positions kv.length and on in the session."""

    kv: SessionKV
    start: int
    end: int

    @property
    def reach(self) -> int:
        """Positions in the KV once this span is written."""
        return self.kv.length + self.end - self.start


@dataclass(frozen=True, slots=True)
class Attention:
    """What varies between layers. scale: of the products. window: positions a query sees, itself included."""

    scale: float
    window: int | None = None
    softcap: float | None = None


class RaggedBatch:
    """The spans of one pass."""

    reach: int | None = None

    def __init__(self, spans: Sequence[Span]) -> None:
        self.spans = spans

    def positions(self) -> list[int]:
        """Of every token in its own session."""
        return [position for span in self.spans for position in range(span.kv.length, span.reach)]

    def write(self, layer: int, keys: Tensor, values: Tensor) -> None:
        """Store what the row's tokens add to their sessions. keys, values: [key heads, tokens, width]."""
        for span in self.spans:
            span.kv.write(layer, keys[:, span.start : span.end], values[:, span.start : span.end])

    def file(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """`write` what a layer of transformers hands over, [1, key heads, tokens, width]; `attend` reads it there."""
        self.write(layer, keys[0], values[0])
        return keys, values

    def attend(self, layer: int, query: Tensor, kind: Attention) -> Tensor:
        """What every token reads, after `write`. query: [tokens, heads, width]; [tokens, heads * width]."""
        read = [attend(query[span.start : span.end], *span.kv.read(layer, span.reach), kind) for span in self.spans]
        return read[0] if len(read) == 1 else torch.cat(read)


def attend(query: Tensor, keys: Tensor, values: Tensor, kind: Attention) -> Tensor:
    """Causal attention of the last n of `end` positions. query: [n, heads, width]; [n, heads * width].

    keys, values: [key heads, end, width]. Heads that share a key head are rows of one product: nothing is repeated.
    """
    if len(query) > FEW and kind.softcap is None:
        return _many(query, keys, values, kind)
    n, heads, width = query.shape
    shared = len(keys)
    rows = query.view(n, shared, -1, width).permute(1, 2, 0, 3).reshape(shared, -1, width)
    scores = torch.bmm(rows * kind.scale, keys.transpose(1, 2))
    if kind.softcap is not None:
        scores = (scores / kind.softcap).tanh_() * kind.softcap
    _hide(scores.view(shared, heads // shared, n, -1), kind.window)
    weights = torch.softmax(scores, dim=-1, dtype=torch.float32).to(values.dtype)
    return torch.bmm(weights, values).view(shared, -1, n, width).permute(2, 0, 1, 3).reshape(n, heads * width)


def _hide(scores: Tensor, window: int | None) -> None:
    """-inf where a query may not look. scores: [.., n, end], the queries being the last n of `end` positions."""
    n, end = scores.shape[-2:]
    if window is not None and end > window:
        scores.masked_fill_(~visible(n, end, window, scores.device), -math.inf)
    elif n > 1:
        scores[..., end - n :].masked_fill_(~visible(n, n, None, scores.device), -math.inf)


def _many(query: Tensor, keys: Tensor, values: Tensor, kind: Attention) -> Tensor:
    n, end = len(query), keys.shape[1]
    whole = n == end and (kind.window is None or end <= kind.window)
    mask = None if whole else visible(n, end, kind.window, query.device)
    read = scaled_dot_product_attention(
        query.transpose(0, 1)[None],
        keys[None],
        values[None],
        attn_mask=mask,
        is_causal=whole,
        scale=kind.scale,
        enable_gqa=True,
    )
    return read[0].transpose(0, 1).reshape(n, -1)


@lru_cache(maxsize=64)
def visible(n: int, end: int, window: int | None, device: torch.device) -> Tensor:
    """Who sees whom among the last n of `end` positions, bool [n, end]."""
    order = torch.arange(end, device=device)
    own = order[end - n :, None]
    seen = order <= own
    return seen if window is None else seen & (order > own - window)
