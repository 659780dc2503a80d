"""The whole of a distillation: answers, held-out answers, training, figures, model folder. Resumable at any point."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from adasd.distill.card import Facts, model_card
from adasd.distill.checkpoint import Progress
from adasd.distill.construct import check_layers, frequent_ids, student_from, student_of
from adasd.distill.evaluate import Group, Score, pooled, score
from adasd.distill.export import write_student
from adasd.distill.generate import Generator, Question
from adasd.distill.packed import PRECISIONS, check_precision
from adasd.distill.prompts import Split, parse_source, read_prompts, split_prompts
from adasd.distill.recipe import HELD_OUT_SHARE, HELD_OUT_TEMPERATURES, Recipe, Stage, open_stage
from adasd.distill.store import AnswerStore
from adasd.distill.teacher import Teacher
from adasd.distill.train import Trainer
from adasd.distill.trees import PACKED_ATTENTION, Tree, trees_of
from adasd.distill.writing import AnswerPlan, Written, write_answers
from adasd.runtime.allocator import keep_freed_memory
from adasd.runtime.student import TrimmedLlamaForCausalLM, load_student

Show = Callable[[str, float, str], None]
"""Stage, share of it that is done, figures in words."""
CURVE_TREES = 32
"""Held-out prompts judged for every point of the curve; the final figures take all."""


def silent(stage: str, done: float, text: str) -> None:
    """Show nothing."""


def distil(recipe: Recipe, out: Path, device: str = "cpu", show: Show = silent) -> Path:
    """Make a student; the folder it is in. Called again after a kill, it goes on where it was.

    Raises InvalidRequest for prompts, target, layers or a folder that cannot be used, before any work.
    """
    teacher, stage = write(recipe, out, device, show)
    training, held_out = answered(out)
    student = new_student(recipe, teacher, training)
    trainer = _train(student, teacher, training, held_out, stage, out, show)
    figures = {"first": _earlier_figures(recipe.init, teacher, held_out)} if recipe.init else {}
    figures["this"] = score(student, teacher.head, held_out)
    facts = _facts(recipe, teacher, training, trainer.progress, figures)
    write_student(student, out / "student", teacher.name, model_card(facts))
    return out / "student"


def write(recipe: Recipe, out: Path, device: str = "cpu", show: Show = silent) -> tuple[Teacher, Stage]:
    """The first stage alone: answers to prompts of both sides, in `out`."""
    split, teacher = read_split(recipe), Teacher(Path(recipe.target), device)
    if recipe.init is None:
        check_layers(teacher.model, recipe.layers)
    else:
        load_student(Path(recipe.init), teacher.model)
    check_precision(recipe.precision, device)
    stage = open_stage(out, recipe)
    keep_freed_memory()
    _write(teacher, split, stage, out, show)
    return teacher, stage


def answered(out: Path) -> tuple[list[Tree], list[Tree]]:
    """What was written to train on, and to judge by."""
    training, held_out = (trees_of(AnswerStore(out / folder).answers()) for folder in ("answers", "held-out"))
    return training, held_out


def read_split(recipe: Recipe) -> Split:
    """The prompts of the recipe's files, held-out ones apart."""
    sources = [parse_source(argument) for argument in recipe.prompts]
    prompts = (prompt for source, path in sources for prompt in read_prompts(source, path))
    return split_prompts(prompts, recipe.writing.seed, HELD_OUT_SHARE, recipe.held_out)


def _write(teacher: Teacher, split: Split, stage: Stage, out: Path, show: Show) -> None:
    """Both sets of answers, the held-out ones first; nothing once they are written."""
    if stage.written:
        return
    recipe = stage.recipe
    judged = AnswerPlan(HELD_OUT_TEMPERATURES, len(HELD_OUT_TEMPERATURES), recipe.writing.seed)
    held_out = judged.questions(split.held_out, teacher.tokenize, recipe.longest_prompt)
    training = recipe.writing.questions(split.training, teacher.tokenize, recipe.longest_prompt)
    for folder, questions, precision in (
        ("held-out", held_out, "float32"),
        ("answers", islice(training, recipe.answers), recipe.precision),
    ):
        generator = _generator(teacher, recipe, precision)
        _write_timed(generator, questions, AnswerStore(out / folder), stage, partial(show, folder))
    stage.written = True
    stage.save()


def _generator(teacher: Teacher, recipe: Recipe, precision: str) -> Generator:
    return Generator(
        teacher.fresh_model(),
        teacher.eos_ids,
        recipe.slots,
        recipe.limit,
        recipe.limit + recipe.longest_prompt,
        PRECISIONS[precision],
    )


def _write_timed(
    generator: Generator,
    questions: Iterator[Question],
    store: AnswerStore,
    stage: Stage,
    show: Callable[[float, str], None],
) -> None:
    """Write within what is left of the recipe's time; the time spent is kept, so that a kill does not reset it."""
    before, limit = stage.writing_seconds, stage.recipe.writing_seconds
    already = sum(1 for _ in store.questions())

    def report(written: Written) -> None:
        stage.writing_seconds = before + written.seconds
        stage.save()
        by_time = stage.writing_seconds / limit if limit else 0.0
        by_count = (already + written.answers) / stage.recipe.answers if stage.recipe.answers else 0.0
        rate = written.tokens / written.seconds if written.seconds else 0.0
        show(min(1.0, max(by_time, by_count)), f"{written.tokens} tokens, {rate:.0f}/s")

    remaining = None if limit is None else limit - before
    write_answers(generator, questions, store, remaining, stage.recipe.workers, report)


def new_student(
    recipe: Recipe, teacher: Teacher, training: list[Tree], layers: Sequence[int] = ()
) -> TrimmedLlamaForCausalLM:
    """The student as training finds it, on the teacher's device. layers: to have instead of the recipe's."""
    texts = [answer.ids.tolist() for tree in training for answer in tree.answers]
    vocabulary = teacher.head.shape[0]
    size, always = min(recipe.vocabulary, vocabulary), teacher.eos_ids
    if recipe.init is None:
        student = student_of(teacher.model, layers or recipe.layers, frequent_ids(texts, size, always, vocabulary))
    else:
        earlier = load_student(Path(recipe.init), teacher.model)
        ids = frequent_ids(texts, size, always, vocabulary, earlier.lm_head.vocab_ids.tolist())
        student = student_from(earlier, teacher.model, ids, recipe.layers if layers else (), layers)
    return _on(teacher, student)


def _train(
    student: TrimmedLlamaForCausalLM,
    teacher: Teacher,
    training: list[Tree],
    held_out: list[Tree],
    stage: Stage,
    out: Path,
    show: Show,
) -> Trainer:
    plan = stage.recipe.training
    trainer = Trainer(student, training, plan, out / "training.pt")
    sample = [Tree(tree.answers[-1:]) for tree in held_out[:: max(1, len(held_out) // CURVE_TREES)]]

    def figures() -> dict[str, float]:
        return curve_figures(score(student, teacher.head, sample))

    def report(progress: Progress, loss: float) -> None:
        latest = progress.curve[-1].get("acceptance", 0.0)
        show(
            "training", plan.done(progress), f"{progress.positions} positions, loss {loss:.3f}, acceptance {latest:.3f}"
        )

    trainer.run(figures, report)
    return trainer


def curve_figures(scores: dict[Group, Score]) -> dict[str, float]:
    """One point of the curve: acceptance and agreement over all, acceptance by source."""
    whole = pooled(scores)
    return {"acceptance": whole.acceptance, "agreement": whole.agreement} | {
        source: value.acceptance for (source, _), value in scores.items()
    }


def _earlier_figures(folder: str, teacher: Teacher, held_out: list[Tree]) -> dict[Group, Score]:
    """The figures of the student this one began as, with its own head."""
    earlier = _on(teacher, load_student(Path(folder), teacher.model))
    earlier.set_attn_implementation(PACKED_ATTENTION)
    return score(earlier, teacher.head, held_out)


def _on(teacher: Teacher, student: TrimmedLlamaForCausalLM) -> TrimmedLlamaForCausalLM:
    """The student on the teacher's device."""
    untyped: Any = student
    placed: TrimmedLlamaForCausalLM = untyped.to(teacher.head.device)
    return placed


def _facts(
    recipe: Recipe,
    teacher: Teacher,
    training: list[Tree],
    progress: Progress,
    figures: dict[str, dict[Group, Score]],
) -> Facts:
    start = (
        f"the student in {recipe.init}" if recipe.init else f"layers {', '.join(map(str, recipe.layers))} of the target"
    )
    plan = ", ".join(f"{name} {value}" for name, value in asdict(recipe.training).items() if value is not None)
    lines = [f"starts as {start}; head of {recipe.vocabulary} ids", f"training: {plan}", f"torch {torch.__version__}"]
    return Facts(teacher.name, lines, data_lines(training), progress.curve, figures)


def data_lines(training: list[Tree]) -> list[str]:
    """One line a source: prompts, answers, tokens."""
    lines = []
    for source in sorted({tree.source for tree in training}):
        trees = [tree for tree in training if tree.source == source]
        answers = sum(len(tree.answers) for tree in trees)
        lines.append(
            f"{source}: {len(trees)} prompts, {answers} answers of {sum(tree.scored for tree in trees)} tokens"
        )
    return lines
