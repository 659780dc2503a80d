"""`adasd distill`: a draft model for a target that has none, from the target's own answers."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from adasd.core.errors import AdasdError, InvalidRequest

if TYPE_CHECKING:
    from adasd.distill.ablation import Outcome

UNITS = {"s": 1, "m": 60, "h": 3600}
LINE_SECONDS = 30.0
"""How often a line is printed where there is no terminal to draw on."""

Show = Callable[[str, float, str], None]


def distill(
    target: Annotated[Path, typer.Option(help="Model folder of the target.")],
    prompts: Annotated[list[str], typer.Option(help="JSON lines of prompts, FILE or SOURCE=FILE; may be repeated.")],
    out: Annotated[Path, typer.Option(help="Folder to work in; a run that was killed goes on there.")],
    layers: Annotated[str, typer.Option(help="Layers of the target that the student begins as.")] = "0,1,14,29",
    init: Annotated[
        Path | None, typer.Option(help="Folder of an earlier student to begin as; with --ablate, of these layers.")
    ] = None,
    vocabulary: Annotated[int, typer.Option(help="Ids the student's head knows.")] = 8192,
    budget: Annotated[str, typer.Option(help="Time in all, as 3h, 45m or 1h30m.")] = "3h",
    writing_share: Annotated[float, typer.Option(help="Share of the budget for the target's answers.")] = 0.5,
    answers: Annotated[int | None, typer.Option(help="At most so many answers.")] = None,
    positions: Annotated[int | None, typer.Option(help="Train on at most so many positions.")] = None,
    temperatures: Annotated[str, typer.Option(help="The target answers at these in turn.")] = "0.7,1.0,0.8,0.7,1.0,0",
    each: Annotated[int, typer.Option(help="Answers to every prompt.")] = 3,
    limit: Annotated[int, typer.Option(help="Tokens of an answer at most.")] = 256,
    longest_prompt: Annotated[int, typer.Option(help="Leave out prompts of more tokens.")] = 256,
    loss: Annotated[str, typer.Option(help="kl or tv.")] = "kl",
    final_loss: Annotated[str, typer.Option(help="kl or tv, for the last part of the training.")] = "tv",
    final_share: Annotated[float, typer.Option(help="How large that part is.")] = 0.3,
    rate: Annotated[float, typer.Option(help="Peak learning rate.")] = 6e-4,
    batch: Annotated[int, typer.Option(help="Positions of a training step.")] = 4096,
    slots: Annotated[int, typer.Option(help="Answers written at a time by each worker.")] = 96,
    workers: Annotated[int, typer.Option(help="Threads that work side by side; best one a core.")] = 2,
    precision: Annotated[
        str, typer.Option(help="float32, or bfloat16 to write faster, on CPUs that multiply it.")
    ] = "float32",
    seed: Annotated[int, typer.Option(help="Of prompts' order, draws and batches.")] = 0,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    ablate: Annotated[str | None, typer.Option(help="Compare students LAYERS:VOCABULARY;... on the answers.")] = None,
) -> None:
    """Make a draft model: the target answers the prompts, a small student learns its distributions."""
    from adasd.distill.ablation import ablate as compare
    from adasd.distill.ablation import parse_variants
    from adasd.distill.recipe import Recipe
    from adasd.distill.run import distil, write
    from adasd.distill.train import TrainingPlan
    from adasd.distill.writing import AnswerPlan

    try:
        seconds = parse_duration(budget)
        recipe = Recipe(
            target=str(target),
            prompts=tuple(prompts),
            training=TrainingPlan(
                positions=positions,
                seconds=seconds * (1 - writing_share),
                rate=rate,
                loss=loss,
                final_loss=final_loss,
                final_share=final_share,
                batch=batch,
                workers=workers,
                seed=seed,
            ),
            layers=tuple(map(int, parse_numbers(layers, "layers"))),
            init=None if init is None else str(init),
            vocabulary=vocabulary,
            writing=AnswerPlan(parse_numbers(temperatures, "temperatures"), each, seed),
            answers=answers,
            writing_seconds=seconds * writing_share,
            limit=limit,
            longest_prompt=longest_prompt,
            slots=slots,
            workers=workers,
            precision=precision,
        )
        variants = parse_variants(ablate) if ablate else ()
        with progress() as show:
            if variants:
                write(recipe, out, device, show)
                said = _outcomes(compare(recipe, variants, out, device, show))
            else:
                student = distil(recipe, out, device, show)
                said = f"Student in {student}; its card is {student / 'README.md'}"
    except AdasdError as error:
        typer.secho(f"error: {error}", fg="red", err=True)
        raise typer.Exit(1) from None
    typer.echo(said)


def _outcomes(outcomes: Iterable[Outcome]) -> str:
    lines = ["layers            ids   acceptance  draft step  tokens a round  best speed-up"]
    for one in outcomes:
        layers = ",".join(map(str, one.variant.layers))
        lines.append(
            f"{layers:15s}  {one.variant.vocabulary:5d}  {one.acceptance:10.3f}  {one.draft * 1e3:7.1f} ms"
            f"  {one.best.tokens:14.2f}  {one.best.speedup:.2f}x with {one.best.length}"
        )
    return "\n".join(lines)


def parse_duration(text: str) -> float:
    """Seconds of `3h`, `45m`, `1h30m` or `90s`. Raises InvalidRequest for anything else."""
    if not re.fullmatch(r"(\d+(\.\d+)?[hms])+", text):
        raise InvalidRequest(f"budget must read like 3h, 45m or 1h30m, got {text!r}", "budget")
    return sum(float(number) * UNITS[unit] for number, unit in re.findall(r"([\d.]+)([hms])", text))


def parse_numbers(text: str, name: str) -> tuple[float, ...]:
    """The numbers of a list with commas. Raises InvalidRequest, naming the option."""
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise InvalidRequest(f"{name} must be numbers with commas between, got {text!r}", name) from None


@contextmanager
def progress() -> Iterator[Show]:
    """A bar with the time left on a terminal, a line now and then elsewhere."""
    console = Console(file=sys.stderr)
    if not console.is_terminal:
        yield _lines(console)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[text]}"),
    )
    with Progress(*columns, console=console) as bars:
        tasks = {}

        def show(stage: str, done: float, text: str) -> None:
            if stage not in tasks:
                tasks[stage] = bars.add_task(stage, total=1.0, text="")
            bars.update(tasks[stage], completed=done, text=text)

        yield show


def _lines(console: Console) -> Show:
    begun: dict[str, tuple[float, float]] = {}
    shown: dict[str, float] = {}

    def show(stage: str, done: float, text: str) -> None:
        now = time.monotonic()
        since, had = begun.setdefault(stage, (now, done))
        if now - shown.get(stage, -LINE_SECONDS) >= LINE_SECONDS:
            shown[stage] = now
            left = (now - since) * (1 - done) / (done - had) if done > had else 0.0
            console.print(f"{stage}: {done:.0%}, {text}, about {left / 60:.0f} min left", highlight=False)

    return show
