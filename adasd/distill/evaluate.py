"""Held-out scores: how often candidates would stand on answers of the target, by source and temperature."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch.nn.functional import linear

from adasd.distill.generate import Answer
from adasd.distill.trees import Pack, Tree, batches, pack
from adasd.runtime.student import TrimmedLlamaForCausalLM

Group = tuple[str, float]
"""Source and temperature."""
CHUNK = 256
"""Positions of which full rows of the target are held at a time."""


@dataclass(frozen=True, slots=True)
class Score:
    """Means over positions. acceptance: sum min(p, q), at temperature 0 the agreement. agreement: of the arg max."""

    positions: int
    acceptance: float
    agreement: float


def student_states(student: TrimmedLlamaForCausalLM, packed: Pack) -> torch.Tensor:
    """Final hidden states behind every scored token, [scored, width]."""
    read = student.model(input_ids=packed.ids, position_ids=packed.positions, use_cache=False, spans=packed.spans)
    states: torch.Tensor = read.last_hidden_state[0][packed.predictors]
    return states


class Judged(NamedTuple):
    """One answer, position by position: sum min(p, q) at its temperature, and whether the arg max agrees, both [n]."""

    answer: Answer
    overlap: torch.Tensor
    same: torch.Tensor


def judge(
    student: TrimmedLlamaForCausalLM, target_head: torch.Tensor, trees: Iterable[Tree], batch_size: int = 2048
) -> Iterator[Judged]:
    """Every answer, judged at the temperature it was written at; at 0 the overlap is 1 where the arg max agrees.

    target_head: [vocabulary, width]. The student must use PACKED_ATTENTION.
    """
    for batch in batches(trees, batch_size):
        yield from _judged_batch(student, target_head, batch)


@torch.no_grad()
def _judged_batch(student: TrimmedLlamaForCausalLM, head: torch.Tensor, batch: Sequence[Tree]) -> list[Judged]:
    packed = pack(batch, head.device)
    answers = [answer for tree in batch for answer in tree.answers]
    lengths = [len(answer.ids) for answer in answers]
    states, hidden = torch.split(student_states(student, packed), lengths), torch.split(packed.hidden, lengths)
    return [
        Judged(answer, *_judged(student, head, own, teacher, answer))
        for answer, own, teacher in zip(answers, states, hidden, strict=True)
    ]


def score(
    student: TrimmedLlamaForCausalLM, target_head: torch.Tensor, trees: Iterable[Tree], batch_size: int = 2048
) -> dict[Group, Score]:
    """Scores of every (source, temperature) among the answers."""
    sums: dict[Group, list[float]] = {}
    for answer, overlap, same in judge(student, target_head, trees, batch_size):
        total = sums.setdefault((answer.question.source, answer.question.temperature), [0.0, 0.0, 0.0])
        for index, value in enumerate((len(overlap), overlap.sum().item(), same.sum().item())):
            total[index] += value
    return {group: Score(int(n), overlap / n, same / n) for group, (n, overlap, same) in sorted(sums.items())}


def _judged(
    student: TrimmedLlamaForCausalLM, head: torch.Tensor, states: torch.Tensor, hidden: torch.Tensor, answer: Answer
) -> tuple[torch.Tensor, torch.Tensor]:
    """Overlap and agreement at every position of one answer. states, hidden: [n, width], student's and target's."""
    known, temperature = student.lm_head.vocab_ids.long(), answer.question.temperature
    overlaps, sames = [], []
    for own, teacher in zip(torch.split(states, CHUNK), torch.split(hidden, CHUNK), strict=True):
        q, p = linear(own, student.lm_head.weight), linear(teacher, head)
        same = (known[q.argmax(-1)] == p.argmax(-1)).float()
        overlaps.append(same if temperature == 0 else _overlap(p / temperature, q / temperature, known))
        sames.append(same)
    return torch.cat(overlaps).cpu(), torch.cat(sames).cpu()


def _overlap(target: torch.Tensor, student: torch.Tensor, known: torch.Tensor) -> torch.Tensor:
    """sum min(p, q) of each position, [positions], from logits over all ids and over the known ones."""
    return torch.minimum(target.softmax(-1)[:, known], student.softmax(-1)).sum(-1)


def pooled(scores: Mapping[Group, Score]) -> Score:
    """All groups as one, each position counting alike."""
    positions = sum(score.positions for score in scores.values())
    acceptance = sum(score.acceptance * score.positions for score in scores.values()) / positions
    agreement = sum(score.agreement * score.positions for score in scores.values()) / positions
    return Score(positions, acceptance, agreement)
