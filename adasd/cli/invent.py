"""`adasd invent`: prompts for `adasd distill`, where there are none, from the target itself."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from adasd.cli.distill import progress
from adasd.core.errors import AdasdError, InvalidRequest


def invent(
    target: Annotated[Path, typer.Option(help="Model folder of the target; needs a chat template.")],
    out: Annotated[Path, typer.Option(help="JSON lines to write; a run that was killed goes on with them.")],
    count: Annotated[int, typer.Option(min=1, help="Attempts; most give a prompt.")] = 1000,
    apart_from: Annotated[
        list[Path] | None,
        typer.Option(help="JSON lines of prompts that none may share eight words in a row with; may be repeated."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the draws.")] = 0,
    limit: Annotated[int, typer.Option(min=2, help="Tokens of a prompt at most.")] = 160,
    slots: Annotated[int, typer.Option(min=1, help="Prompts written at a time by each worker.")] = 96,
    workers: Annotated[int, typer.Option(min=1, help="Threads that work side by side; best one a core.")] = 2,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
) -> None:
    """Have the target make up prompts, to be answered by it: --prompts invented=FILE of `adasd distill`."""
    from adasd.distill.invention import Apart
    from adasd.distill.invention import invent as texts
    from adasd.distill.teacher import Teacher
    from adasd.runtime.allocator import keep_freed_memory

    try:
        apart, had = Apart.of_files(apart_from or ()), dict(_had(out))
        teacher = Teacher(target, device)
        keep_freed_memory()
        missing = (number for number in range(count) if number not in had)
        invented = texts(teacher, missing, seed, limit, slots, workers)
        seen, left_out = set(had.values()), 0
        with out.open("a", encoding="utf-8") as file, progress() as show:
            for number, text in invented:
                fresh = text in apart and text not in seen
                left_out += not fresh
                if fresh:
                    seen.add(text)
                    print(json.dumps({"number": number, "prompt": text}, ensure_ascii=False), file=file, flush=True)
                show("invented", min(1.0, (len(seen) + left_out) / count), f"{len(seen)} prompts")
    except AdasdError as error:
        typer.secho(f"error: {error}", fg="red", err=True)
        raise typer.Exit(1) from None
    typer.echo(f"{len(seen)} prompts in {out}; said before or too near to what is kept apart: {left_out}")


def _had(out: Path) -> Iterator[tuple[int, str]]:
    """What an earlier run wrote, by number; a last line that was cut off is taken away. Raises InvalidRequest for
    another file.
    """
    if not out.exists():
        return
    whole, _, cut = out.read_text(encoding="utf-8").rpartition("\n")
    for place, line in enumerate(whole.split("\n") if whole else [cut], 1):
        try:
            item = json.loads(line)
            yield int(item["number"]), str(item["prompt"])
        except (ValueError, KeyError, TypeError):
            raise InvalidRequest(f"{out}:{place} is no prompt of `adasd invent`; name another file", "out") from None
    out.write_text(f"{whole or cut}\n", encoding="utf-8")
