"""`adasd inspect`: whether a draft fits a target, and whether speculation with it will pay."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from adasd.core.errors import AdasdError
from adasd.core.types import SamplingParams

if TYPE_CHECKING:
    from adasd.distill.inspection import Forecast
    from adasd.distill.prompts import Prompt


def inspect(
    target: Annotated[str, typer.Argument(help="Model folder, or toy:... for a toy.")],
    draft: Annotated[str, typer.Argument(help="Model folder, or toy:... for a toy.")],
    data: Annotated[Path, typer.Option(help="JSON lines with prompts.")],
    prompts: Annotated[int, typer.Option(help="How many of them.")] = 6,
    tokens: Annotated[int, typer.Option(help="Longest answer.")] = 48,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.7,
    longest: Annotated[int, typer.Option(help="Longest block of candidates to consider.")] = 8,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
) -> None:
    """Check a pair, measure both models, and say whether drafting pays and at which lengths."""
    from adasd.distill.inspection import check_fit, forecasts, measure_pace, overlaps
    from adasd.distill.prompts import distinct_prompts
    from adasd.runtime.loading import load_model
    from adasd.runtime.options import RuntimeOptions

    try:
        questions = distinct_prompts(data, prompts)
        judge, _ = load_model(target, "target", RuntimeOptions(device=device))
        drafter, _ = load_model(draft, "draft", RuntimeOptions(device=device, target=_folder(target)))
        for note in check_fit(judge.info(), drafter.info()):
            typer.echo(note)
        contexts = [_encode(target, question, judge.info().vocabulary) for question in questions]
        sampling = SamplingParams(temperature=temperature, seed=0)
        answers = [overlaps(judge, drafter, context, sampling, tokens) for context in contexts]
        pace = measure_pace(judge, drafter, max(contexts, key=len), longest)
    except AdasdError as error:
        typer.secho(f"error: {error}", fg="red", err=True)
        raise typer.Exit(1) from None
    acceptance = sum(float(answer.sum()) for answer in answers) / sum(len(answer) for answer in answers)
    typer.echo(f"a draft step takes {pace.draft * 1e3:.1f} ms, a target step {pace.verify[0] * 1e3:.1f} ms")
    typer.echo(f"expected acceptance {acceptance:.3f} at temperature {temperature:g}\n")
    typer.echo(_verdict(forecasts(answers, pace)))


def _folder(model: str) -> Path | None:
    return Path(model) if Path(model).is_dir() else None


def _encode(model: str, prompt: Prompt, vocabulary: int) -> Sequence[int]:
    """The ids the target reads before its answer."""
    from adasd.runtime.toy_tokenizer import toy_tokenizer

    if (folder := _folder(model)) is None:
        plain: list[int] = toy_tokenizer(vocabulary).encode("\n".join(prompt.turns)).ids
        return plain
    from adasd.distill.teacher import TeacherTokenizer

    return TeacherTokenizer(folder)(prompt)


def _verdict(found: Sequence[Forecast]) -> str:
    lines = ["candidates  tokens a round  speed-up"]
    lines += [f"{one.length:10d}  {one.tokens:14.2f}  {one.speedup:7.2f}x" for one in found]
    paying = [one for one in found[1:] if one.speedup > 1]
    if not paying:
        return "\n".join([*lines, "", "Speculation will not pay with this pair here."])
    best = max(paying, key=lambda one: one.speedup)
    span = f"{paying[0].length} to {paying[-1].length}" if len(paying) > 1 else str(paying[0].length)
    return "\n".join(
        [*lines, "", f"Speculation pays with {span} candidates, best with {best.length}: {best.speedup:.2f}x."]
    )
