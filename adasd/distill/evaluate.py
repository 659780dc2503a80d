"""Held-out scores: how often candidates would stand on answers of the target, by source and temperature."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch.nn.functional import linear

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


@torch.no_grad()
def score(
    student: TrimmedLlamaForCausalLM, target_head: torch.Tensor, trees: Iterable[Tree], batch_size: int = 2048
) -> dict[Group, Score]:
    """Scores of every (source, temperature) among the answers, each judged at the temperature it was written at.

    target_head: [vocabulary, width]. The student must use PACKED_ATTENTION.
    """
    sums: dict[Group, torch.Tensor] = {}
    for batch in batches(trees, batch_size):
        packed = pack(batch, target_head.device)
        states, start = student_states(student, packed), 0
        for answer in (answer for tree in batch for answer in tree.answers):
            span, start = slice(start, start + len(answer.ids)), start + len(answer.ids)
            group = answer.question.source, answer.question.temperature
            judged = _judged(student, target_head, states[span], packed.hidden[span], answer.question.temperature)
            sums[group] = sums.get(group, torch.zeros(3)) + judged
    return {group: Score(int(n), float(a / n), float(g / n)) for group, (n, a, g) in sorted(sums.items())}


def _judged(
    student: TrimmedLlamaForCausalLM, head: torch.Tensor, states: torch.Tensor, hidden: torch.Tensor, temperature: float
) -> torch.Tensor:
    """Positions, summed acceptance and summed agreement of one answer, [3]."""
    total = torch.zeros(3)
    known = student.lm_head.vocab_ids.long()
    for own, teacher in zip(torch.split(states, CHUNK), torch.split(hidden, CHUNK), strict=True):
        q, p = linear(own, student.lm_head.weight), linear(teacher, head)
        same = known[q.argmax(-1)] == p.argmax(-1)
        overlap = same.float() if temperature == 0 else _overlap(p / temperature, q / temperature, known)
        total += torch.stack([torch.tensor(len(own)), overlap.sum().cpu(), same.sum().cpu()])
    return total


def _overlap(target: torch.Tensor, student: torch.Tensor, known: torch.Tensor) -> torch.Tensor:
    """sum min(p, q) of each position, [positions], from logits over all ids and over the known ones."""
    return torch.minimum(target.softmax(-1)[:, known], student.softmax(-1)).sum(-1)


def pooled(scores: Mapping[Group, Score]) -> Score:
    """All groups as one, each position counting alike."""
    positions = sum(score.positions for score in scores.values())
    acceptance = sum(score.acceptance * score.positions for score in scores.values()) / positions
    agreement = sum(score.agreement * score.positions for score in scores.values()) / positions
    return Score(positions, acceptance, agreement)
