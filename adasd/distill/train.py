"""The second stage: the student learns the target's distributions at every position of its answers; resumable."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path

import torch
from torch.nn.functional import linear, log_softmax

from adasd.core.errors import InvalidRequest
from adasd.distill.checkpoint import Progress, load_checkpoint, save_checkpoint
from adasd.distill.evaluate import student_states
from adasd.distill.losses import LOSSES
from adasd.distill.trees import PACKED_ATTENTION, Tree, batches, pack
from adasd.runtime.student import TrimmedLlamaForCausalLM


@dataclass(frozen=True, slots=True)
class TrainingPlan:
    """How to train. It ends at `positions` scored or after `seconds`, whichever is given and comes first.

    rate: peak learning rate; rises over the first `warmup` of the budget and falls as a cosine to a hundredth.
    loss, then final_loss for the last `final_share` of the budget. batch: positions a step, prompts included.
    workers: threads that each take a share of a batch. every: steps between evaluations and checkpoints.
    """

    positions: int | None = None
    seconds: float | None = None
    rate: float = 6e-4
    warmup: float = 0.03
    loss: str = "kl"
    final_loss: str = "tv"
    final_share: float = 0.0
    weight_decay: float = 0.01
    batch: int = 4096
    workers: int = 1
    every: int = 25
    seed: int = 0

    def __post_init__(self) -> None:
        if self.positions is None and self.seconds is None:
            raise InvalidRequest("a training needs an end: positions or seconds", "budget")
        for name in (self.loss, self.final_loss):
            if name not in LOSSES:
                raise InvalidRequest(f"unknown loss {name!r}; known: {', '.join(LOSSES)}", "loss")

    def done(self, progress: Progress) -> float:
        """Share of the budget that is used up, 1 at the end."""
        by_positions = progress.positions / self.positions if self.positions else 0.0
        by_seconds = progress.seconds / self.seconds if self.seconds else 0.0
        return min(1.0, max(by_positions, by_seconds))

    def rate_at(self, done: float) -> float:
        rise = min(1.0, (done + 1e-3) / self.warmup) if self.warmup else 1.0
        return self.rate * rise * (0.01 + 0.99 * (1 + math.cos(math.pi * done)) / 2)

    def loss_at(self, done: float) -> str:
        return self.loss if done < 1 - self.final_share else self.final_loss


Evaluate = Callable[[], dict[str, float]]
Report = Callable[[Progress, float], None]


class Trainer:
    """One training of one student. Only its layers and norm learn; embedding and head are the target's.

    checkpoint: file to resume from and to write. evaluate: figures for the curve, called with the student as it is.
    """

    def __init__(
        self, student: TrimmedLlamaForCausalLM, trees: Sequence[Tree], plan: TrainingPlan, checkpoint: Path
    ) -> None:
        if not trees:
            raise InvalidRequest("no answers to train on", "prompts")
        student.set_attn_implementation(PACKED_ATTENTION)
        self._student, self._trees, self._plan, self._checkpoint = student, trees, plan, checkpoint
        self.weights = {name: tensor for name, tensor in student.named_parameters() if tensor.requires_grad}
        self._optimizer = torch.optim.AdamW(
            self.weights.values(), plan.rate, betas=(0.9, 0.95), weight_decay=plan.weight_decay
        )
        self.progress = load_checkpoint(checkpoint, self.weights, self._optimizer)

    def run(self, evaluate: Evaluate, report: Report = lambda progress, loss: None) -> Progress:
        """Train to the end of the budget; the curve has a point at the start, every `every` steps and at the end."""
        if not self.progress.curve:
            self._note(evaluate)
        with ThreadPoolExecutor(self._plan.workers, initializer=self._own_threads) as pool:
            for batch in islice(self._stream(), self.progress.step, None):
                if self._plan.done(self.progress) >= 1:
                    break
                report(self.progress, self._step(batch, pool))
                if self.progress.step % self._plan.every == 0:
                    self._note(evaluate)
        if self.progress.curve[-1]["step"] != self.progress.step:
            self._note(evaluate)
        return self.progress

    def _own_threads(self) -> None:
        if self._plan.workers > 1:
            torch.set_num_threads(1)

    def _stream(self) -> Iterator[list[Tree]]:
        """Batches without end; every epoch goes through the trees in an order of its own."""
        for epoch in count():
            order = torch.randperm(len(self._trees), generator=torch.Generator().manual_seed(self._plan.seed + epoch))
            yield from batches((self._trees[index] for index in order.tolist()), self._plan.batch)

    def _step(self, batch: Sequence[Tree], pool: ThreadPoolExecutor) -> float:
        started, done = time.monotonic(), self._plan.done(self.progress)
        scored = sum(tree.scored for tree in batch)
        shares = [share for share in _shared_out(batch, self._plan.workers) if share]
        results = list(pool.map(lambda share: self._gradients(share, scored, self._plan.loss_at(done)), shares))
        for weight, *parts in zip(self.weights.values(), *(gradients for _, gradients in results), strict=True):
            weight.grad = torch.stack(parts).sum(0) if len(parts) > 1 else parts[0]
        torch.nn.utils.clip_grad_norm_(self.weights.values(), 1.0)
        for group in self._optimizer.param_groups:
            group["lr"] = self._plan.rate_at(done)
        self._optimizer.step()
        self.progress.step += 1
        self.progress.positions += scored
        self.progress.seconds += time.monotonic() - started
        return sum(loss for loss, _ in results)

    def _gradients(self, share: Sequence[Tree], scored: int, loss: str) -> tuple[float, tuple[torch.Tensor, ...]]:
        """This share's part of the batch's mean loss, and its gradients."""
        head, known = self._student.lm_head.weight, self._student.lm_head.vocab_ids.long()
        packed = pack(share, head.device)
        log_target = linear(packed.hidden, head) - packed.log_normalizers[:, None]
        log_student = log_softmax(linear(student_states(self._student, packed), head), dim=-1)
        assert log_target.shape[1] == len(known)
        value = LOSSES[loss]()(log_target, log_student) * (len(packed.predictors) / scored)
        return value.item(), torch.autograd.grad(value, list(self.weights.values()))

    def _note(self, evaluate: Evaluate) -> None:
        started = time.monotonic()
        figures = evaluate()
        self.progress.seconds += time.monotonic() - started
        point = {"step": self.progress.step, "positions": self.progress.positions, "seconds": self.progress.seconds}
        self.progress.curve.append(point | figures)
        save_checkpoint(self._checkpoint, self.progress, self.weights, self._optimizer)


def _shared_out(batch: Sequence[Tree], workers: int) -> list[list[Tree]]:
    """The trees in `workers` shares of about the same size."""
    shares: list[list[Tree]] = [[] for _ in range(workers)]
    for tree in sorted(batch, key=lambda tree: -tree.size):
        min(shares, key=lambda share: sum(tree.size for tree in share)).append(tree)
    return shares
