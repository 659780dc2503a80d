"""Attention of one query a row over a shared preallocated cache, as an attention function of transformers."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

SLOT_ATTENTION = "adasd_slots"


def slot_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Plain matrix products for steps of one position: on the CPU twice as fast as the fused kernel, which is made for
    many queries. The query heads that share a key head are its rows, so keys are neither copied nor repeated.

    query: [rows, heads, positions, width]. key, value: [rows, key heads, cached, width]. mask: additive,
    [rows, 1, 1, cached]. Passes over several positions go to the fused kernel.
    """
    rows, heads, positions, width = query.shape
    if positions > 1 or attention_mask is None:
        read: tuple[torch.Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, **kwargs
        )
        return read
    scale = width**-0.5 if scaling is None else scaling
    grouped = (query * scale).view(rows, key.shape[1], -1, width)
    weights = torch.softmax(grouped @ key.transpose(2, 3) + attention_mask, dim=-1)
    return (weights @ value).view(rows, 1, heads, width), None


AttentionInterface.register(SLOT_ATTENTION, slot_attention)
AttentionMaskInterface.register(SLOT_ATTENTION, sdpa_mask)
