"""The likeliest ids of a row without ranking the whole vocabulary."""

from __future__ import annotations

from torch import Tensor

DEPTH = 16
"""Logits of which only the largest is looked at first."""


def likeliest(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """`logits.topk(count)`: values, descending, and ids; among equals at its end any may be listed. [rows, count].

    logits: [rows, vocabulary], count at most the vocabulary. The largest logits lie in the stacks with the largest
    maxima, so only `count` stacks of `DEPTH` are ranked.
    """
    rows, vocabulary = logits.shape
    stacks = vocabulary // DEPTH
    if vocabulary % DEPTH or stacks < 2 * count:
        return logits.topk(count)
    stacked = logits.view(rows, DEPTH, stacks)
    columns = stacked.amax(1).topk(count, sorted=False).indices[:, None].expand(rows, DEPTH, count)
    values, places = stacked.gather(-1, columns).flatten(1).topk(count)
    ids = places // count * stacks + columns[:, 0].gather(-1, places % count)
    return values, ids
