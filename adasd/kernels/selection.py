"""The likeliest ids of a row without ranking the whole vocabulary."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def likeliest(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """`logits.topk(count)`: values, descending, and ids; of equals at its end it lists any. Both [rows, count].

    logits: [rows, vocabulary]. The largest lie in the `count` stacks with the largest maxima, so only those are ranked;
    what is left over beside the stacks is, too. Of all depths the square root leaves the fewest to rank.
    """
    rows, vocabulary = logits.shape
    depth = math.isqrt(vocabulary // count)
    if depth < 2:
        return logits.topk(count)
    stacks = vocabulary // depth
    whole = depth * stacks
    bottoms = logits[:, :whole].view(rows, depth, stacks).amax(1).topk(count, sorted=False).indices
    levels = torch.arange(0, whole, stacks, device=logits.device)
    left_over = torch.arange(whole, vocabulary, device=logits.device)
    candidates = torch.cat([(bottoms[:, None] + levels[:, None]).flatten(1), left_over.expand(rows, -1)], -1)
    values, places = logits.gather(-1, candidates).topk(count)
    return values, candidates.gather(-1, places)
