"""One token a row from its own temperature and its own uniform number."""

from __future__ import annotations

import torch

BLOCK = 256


def sample(logits: torch.Tensor, temperatures: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    """Ids [rows] by inverse CDF at each row's temperature; the arg max where it is 0.

    logits: [rows, vocabulary], overwritten: new memory of this size costs more than the arithmetic.
    temperatures: [rows], >= 0. uniforms: float64 [rows], in [0, 1).
    """
    highest, greedy = logits.max(-1, keepdim=True)
    weights = logits.sub_(highest).div_(torch.where(temperatures > 0, temperatures, 1.0)[:, None]).exp_()
    return torch.where(temperatures > 0, inverse_cdf(weights, uniforms), greedy[:, 0])


def inverse_cdf(weights: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    """The first index of each row whose cumulative weight exceeds uniform * sum, int64 [rows].

    Blocks first, then inside one: a cumulative sum in double over the whole vocabulary costs more than exponentials.
    """
    rows = torch.arange(len(weights), device=weights.device)
    padded = torch.nn.functional.pad(weights, (0, -weights.shape[-1] % BLOCK))
    blocks = padded.view(len(weights), -1, BLOCK)
    ends = blocks.sum(-1).double().cumsum(-1)
    mark = uniforms * ends[:, -1]
    block = _first_above(ends, mark)
    before = torch.where(block > 0, ends[rows, block - 1], 0.0)
    inside = blocks[rows, block].double().cumsum(-1)
    return block * BLOCK + _first_above(inside, mark - before)


def _first_above(cumulative: torch.Tensor, mark: torch.Tensor) -> torch.Tensor:
    """First index of each row with cumulative > mark; rounding never leads past the last index with weight."""
    last = torch.searchsorted(cumulative, cumulative[:, -1:].contiguous())
    found = torch.searchsorted(cumulative, mark[:, None].contiguous(), right=True)
    return torch.minimum(found, last)[:, 0]
