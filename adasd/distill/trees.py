"""Answers that share a prompt as one sequence: the prompt once, then every answer to it; packed without padding."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby, pairwise
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from adasd.distill.generate import Answer

PACKED_ATTENTION = "adasd_packed"


@dataclass(frozen=True)
class Tree:
    """A prompt and answers to it. What an answer's last token would predict is nobody's business, so it is not read."""

    answers: tuple[Answer, ...]

    @property
    def source(self) -> str:
        return self.answers[0].question.source

    @property
    def prompt(self) -> tuple[int, ...]:
        return self.answers[0].question.prompt

    @cached_property
    def lengths(self) -> tuple[int, ...]:
        """Positions of the prompt, then of each answer."""
        return len(self.prompt), *(len(answer.ids) - 1 for answer in self.answers)

    @property
    def size(self) -> int:
        """Positions in all."""
        return sum(self.lengths)

    @property
    def scored(self) -> int:
        """Positions with a teacher: one for every token of every answer."""
        return sum(len(answer.ids) for answer in self.answers)

    def ids(self) -> torch.Tensor:
        """int64 [size]."""
        return torch.cat([torch.tensor(self.prompt), *(answer.ids[:-1].long() for answer in self.answers)])

    def positions(self) -> torch.Tensor:
        """Place of each token in its own conversation, int64 [size]: every answer goes on from the prompt."""
        start, *answers = self.lengths
        return torch.cat([torch.arange(start), *(torch.arange(start, start + length) for length in answers)])

    def predictors(self) -> torch.Tensor:
        """For each token of each answer the index of the position that predicts it, int64 [scored]."""
        last, begin, found = len(self.prompt) - 1, len(self.prompt), []
        for length in self.lengths[1:]:
            found += [last, *range(begin, begin + length)]
            begin += length
        return torch.tensor(found)

    def mask(self) -> torch.Tensor:
        """Who attends to whom, bool [size, size]: causal, all to the prompt, no answer to another."""
        owners = torch.repeat_interleave(torch.arange(len(self.lengths)), torch.tensor(self.lengths))
        order = torch.arange(self.size)
        same = (owners[:, None] == owners) | (owners == 0)
        return same & (order[:, None] >= order)


def trees_of(answers: Iterable[Answer]) -> list[Tree]:
    """Answers grouped by prompt; the order depends on the questions alone, not on when they were answered."""
    ordered = sorted(answers, key=lambda answer: (answer.question.key, answer.question.number))
    groups = groupby(ordered, key=lambda answer: answer.question.key)
    return [Tree(tuple(group)) for _, group in groups]


@dataclass(frozen=True)
class Pack:
    """Some trees end to end as one row. ids, positions: int64 [1, size]. predictors: int64 [scored], into the row.

    spans: where each tree begins and ends, with its mask. hidden: [scored, width], log_normalizers: [scored], of the
    target.
    """

    trees: tuple[Tree, ...]
    ids: torch.Tensor
    positions: torch.Tensor
    predictors: torch.Tensor
    spans: tuple[tuple[int, int, torch.Tensor], ...]
    hidden: torch.Tensor
    log_normalizers: torch.Tensor


def pack(trees: Sequence[Tree], device: torch.device) -> Pack:
    """One row of all the trees, on the device, teacher states in float32."""
    starts = [0]
    for tree in trees:
        starts.append(starts[-1] + tree.size)
    answers = [answer for tree in trees for answer in tree.answers]
    return Pack(
        tuple(trees),
        torch.cat([tree.ids() for tree in trees])[None].to(device),
        torch.cat([tree.positions() for tree in trees])[None].to(device),
        torch.cat([tree.predictors() + start for tree, start in zip(trees, starts[:-1], strict=True)]).to(device),
        tuple((a, b, tree.mask().to(device)) for tree, (a, b) in zip(trees, pairwise(starts), strict=True)),
        torch.cat([answer.hidden for answer in answers]).to(device, torch.float32),
        torch.cat([answer.log_normalizers for answer in answers]).to(device),
    )


def batches(trees: Iterable[Tree], size: int) -> Iterator[list[Tree]]:
    """Consecutive trees, each batch of at least `size` positions but for the last."""
    batch: list[Tree] = []
    for tree in trees:
        batch.append(tree)
        if sum(tree.size for tree in batch) >= size:
            yield batch
            batch = []
    if batch:
        yield batch


def packed_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    spans: Sequence[tuple[int, int, torch.Tensor]] = (),
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Attention inside each span of the row only.

    query: [1, heads, size, width]. key, value: [1, key heads, size, width].
    """
    repeats = query.shape[1] // key.shape[1]
    keys, values = key.repeat_interleave(repeats, dim=1), value.repeat_interleave(repeats, dim=1)
    read = [
        scaled_dot_product_attention(
            query[:, :, start:end], keys[:, :, start:end], values[:, :, start:end], mask, scale=scaling
        )
        for start, end, mask in spans
    ]
    return torch.cat(read, dim=2).transpose(1, 2), None


AttentionInterface.register(PACKED_ATTENTION, packed_attention)
