"""Which layers and how large a vocabulary: students at equal training budget, judged by tokens per time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from adasd.core.errors import InvalidRequest
from adasd.core.types import FloatArray
from adasd.distill.construct import check_layers
from adasd.distill.evaluate import judge
from adasd.distill.export import write_student
from adasd.distill.inspection import Forecast, Pace, forecasts, measure_pace
from adasd.distill.recipe import Recipe
from adasd.distill.run import Show, answered, new_student, silent
from adasd.distill.teacher import Teacher
from adasd.distill.train import Trainer
from adasd.distill.trees import Tree
from adasd.runtime.checkpoint import load_checkpoint
from adasd.runtime.options import RuntimeOptions
from adasd.runtime.student import TrimmedLlamaForCausalLM

LONGEST_BLOCK = 8
CONTEXT = 128
"""Positions before the steps that are timed."""


@dataclass(frozen=True, slots=True)
class Variant:
    """One student to try: layers of the target, ids of its head."""

    layers: tuple[int, ...]
    vocabulary: int

    @property
    def name(self) -> str:
        return f"{'-'.join(map(str, self.layers))}_{self.vocabulary}"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a variant. acceptance: mean overlap. draft: seconds a step. best: at the length that pays most."""

    variant: Variant
    acceptance: float
    draft: float
    best: Forecast


def parse_variants(text: str) -> tuple[Variant, ...]:
    """`0,1,14,29:8192;0,29:4096`. Raises InvalidRequest for anything else."""
    try:
        parts = [variant.split(":") for variant in text.split(";")]
        return tuple(Variant(tuple(map(int, layers.split(","))), int(size)) for layers, size in parts)
    except ValueError:
        raise InvalidRequest(f"variants read like 0,1,14,29:8192;0,29:4096, got {text!r}", "ablate") from None


def ablate(
    recipe: Recipe, variants: Sequence[Variant], out: Path, device: str = "cpu", show: Show = silent
) -> Iterator[Outcome]:
    """Train every variant on the answers in `out` with the recipe's training budget; resumable variant by variant.

    With `init` they begin as that student, which began as the recipe's layers, as far as they have its layers.
    Answers written at temperature 0 tell nothing of sampling and are left out. Raises InvalidRequest without answers.
    """
    training, held_out = answered(out)
    sampled = [kept for tree in held_out if (kept := _sampled(tree)).answers]
    if not training or not sampled:
        raise InvalidRequest(f"{out} holds no answers to train on and to judge by", "out")
    teacher = Teacher(Path(recipe.target), device)
    for variant in variants:
        check_layers(teacher.model, variant.layers)
    for variant in variants:
        chosen = replace(recipe, vocabulary=variant.vocabulary)
        folder = out / "ablation" / variant.name
        student = new_student(chosen, teacher, training, variant.layers)
        _train(student, chosen, teacher, training, folder, partial(show, variant.name))
        overlaps = [judged.overlap.double().numpy() for judged in judge(student, teacher.head, sampled)]
        yield _outcome(variant, overlaps, _pace(recipe, folder, device))


def _sampled(tree: Tree) -> Tree:
    return Tree(tuple(answer for answer in tree.answers if answer.question.temperature > 0))


def _train(
    student: TrimmedLlamaForCausalLM,
    recipe: Recipe,
    teacher: Teacher,
    training: list[Tree],
    folder: Path,
    show: Callable[[float, str], None],
) -> None:
    """Train it, and write it to `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    trainer = Trainer(student, training, recipe.training, folder / "training.pt")
    trainer.run(dict, lambda progress, loss: show(recipe.training.done(progress), f"loss {loss:.3f}"))
    write_student(student, folder, teacher.name, f"# One of several students of {teacher.name} that were compared\n")


def _pace(recipe: Recipe, folder: Path, device: str) -> Pace:
    options = RuntimeOptions(device=device, target=Path(recipe.target))
    target = load_checkpoint(Path(recipe.target), "target", options)
    draft = load_checkpoint(folder, "draft", options)
    return measure_pace(target, draft, range(1, CONTEXT + 1), LONGEST_BLOCK)


def _outcome(variant: Variant, overlaps: Sequence[FloatArray], pace: Pace) -> Outcome:
    best = max(forecasts(overlaps, pace), key=lambda one: one.speedup)
    return Outcome(variant, float(np.concatenate(overlaps).mean()), pace.draft, best)
