"""Logits of a model in several ranks: gathered on all of them, as they are, or a softmax of what each rank holds.

    torchrun --nproc-per-node 3 -m adasd.bench.sharded_logits

Medians in milliseconds of both, in turn, beside the sums of hidden states that a pass of 30 layers exchanges. A softmax
takes two exchanges, of the rows' maxima and sums. It lacks the order of a row, which top-k, top-p and the inverse CDF
need: these would take more exchanges than are counted here.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import torch
import torch.distributed as dist
from torch import Tensor

VOCABULARY, HIDDEN, SUMS = 49152, 576, 61
ROWS = (1, 6, 21, 96)
ROUNDS = 15

Work = Callable[[Tensor, int], Tensor]
"""Of this rank's part, [rows, width], and the number of ranks."""


def gathered(logits: Tensor, size: int) -> Tensor:
    """The softmax of whole rows, on every rank."""
    parts = [torch.empty_like(logits) for _ in range(size)]
    dist.all_gather(parts, logits)
    return torch.softmax(torch.cat(parts, -1), -1)


def distributed(logits: Tensor, size: int) -> Tensor:
    """This rank's columns of the softmax of whole rows."""
    peak = logits.max(-1, keepdim=True).values
    dist.all_reduce(peak, dist.ReduceOp.MAX)
    weights = (logits - peak).exp()
    total = weights.sum(-1, keepdim=True)
    dist.all_reduce(total)
    return weights / total


def layers(hidden: Tensor, size: int) -> Tensor:
    """The sums of one pass, without its products."""
    for _ in range(SUMS):
        dist.all_reduce(hidden)
        hidden /= size
    return hidden


def milliseconds(work: Work, given: Tensor, size: int) -> float:
    dist.barrier()
    began = time.perf_counter()
    work(given.clone(), size)
    return (time.perf_counter() - began) * 1e3


def main() -> None:
    dist.init_process_group("gloo")
    size, generator = dist.get_world_size(), torch.Generator().manual_seed(dist.get_rank())
    for rows in ROWS:
        logits = torch.randn(rows, VOCABULARY // size, generator=generator)
        hidden = torch.randn(rows, HIDDEN, generator=generator)
        work: list[tuple[Work, Tensor]] = [(gathered, logits), (distributed, logits), (layers, hidden)]
        times = [[milliseconds(one, given, size) for one, given in work] for _ in range(ROUNDS)]
        if dist.get_rank() == 0:
            medians = [median(found) for found in zip(*times, strict=True)]
            print(f"{rows:3} rows: gathered {medians[0]:.2f}, distributed {medians[1]:.2f}, layers {medians[2]:.2f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
