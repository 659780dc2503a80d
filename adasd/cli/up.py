"""`adasd up`: the demo pair (or any other), Redis and the three services, until Ctrl-C."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from adasd.cli.farewell import Farewell
from adasd.cli.stack import Stack, StackOptions
from adasd.core.errors import AdasdError, InvalidRequest
from adasd.runtime.toy import ToySpec, is_toy, write_toy_model

console = Console(highlight=False)
WATCH_SECONDS = 0.5

Beside = Annotated[
    bool | None,
    typer.Option(
        "--beside/--apart",
        help="Drafter and verifier as one process or as two; one by default where both compute on the same cores.",
    ),
]


def up(
    target: Annotated[
        str | None, typer.Option(help="Folder of the target model, or toy:...; the demo pair's if not given.")
    ] = None,
    draft: Annotated[
        str | None, typer.Option(help="Folder of the draft model, or toy:...; the demo pair's if not given.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Model name that clients use.")] = None,
    host: Annotated[str, typer.Option(help="Address the gateway listens on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port of the gateway; 0 takes a free one.")] = 8000,
    redis: Annotated[str | None, typer.Option(help="URL of a Redis; a private one is started if not given.")] = None,
    logs: Annotated[Path | None, typer.Option(help="Folder for the services' logs.")] = None,
    beside: Beside = None,
    ready_seconds: Annotated[float, typer.Option(help="How long the models may take to load.")] = 600,
) -> None:
    """Start Redis, drafter, verifier and gateway; print the URL; stop all of them on Ctrl-C."""
    farewell = Farewell()
    try:
        options = stack_options(target, draft, name, host=host, port=port, redis_url=redis, logs=logs)
        options = options.placed(beside)
        with Stack(options) as stack:
            with console.status("starting") as status:
                stack.wait_ready(
                    ready_seconds, lambda problem: _leave() if farewell.wait(0) else status.update(problem)
                )
            _greet(stack, options)
            while not farewell.wait(WATCH_SECONDS):
                for restarted in stack.restart_ended():
                    console.print(f"[yellow]the {restarted} ended and was started again[/] (log: {options.logs})")
            console.print("stopping")
    except AdasdError as error:
        console.print(f"[red]error:[/] {error}", markup=True)
        raise typer.Exit(1) from None


def stack_options(
    target: str | None,
    draft: str | None,
    name: str | None,
    *,
    host: str,
    port: int,
    redis_url: str | None,
    logs: Path | None,
) -> StackOptions:
    """The demo pair where nothing else is named; both models or none."""
    if (target is None) != (draft is None):
        raise InvalidRequest("give both --target and --draft, or neither for the demo pair")
    if target is None or draft is None:
        from adasd.runtime.pair import ensure_demo_pair

        pair = ensure_demo_pair()
        target, draft, name = str(pair.target), str(pair.draft), name or "smollm2-135m-instruct"
    logs = logs or Path(tempfile.mkdtemp(prefix="adasd-logs-"))
    return StackOptions(
        draft=draft,
        target=target,
        tokenizer=_toy_tokenizer(target, logs) if is_toy(target) else Path(target),
        model_name=name or ("toy" if is_toy(target) else Path(target).name),
        logs=logs,
        host=host,
        port=port,
        redis_url=redis_url,
    )


def _toy_tokenizer(spec: str, logs: Path) -> Path:
    """A toy model has no folder of its own; the gateway reads its tokenizer from one beside the logs."""
    folder = logs / "toy-tokenizer"
    write_toy_model(folder, ToySpec.parse(spec))
    return folder


def _leave() -> None:
    raise typer.Exit(0)


def _greet(stack: Stack, options: StackOptions) -> None:
    console.print(f"[bold green]ready[/]  {stack.url}   model: {options.model_name}")
    console.print(f"  chat page   {stack.url}/")
    console.print(f"  OpenAI API  {stack.url}/v1   (openai.OpenAI(base_url=..., api_key='none'))")
    console.print(f"  terminal    adasd chat --url {stack.url} 'Why is the sky blue?'")
    if options.beside:
        console.print("  drafter     beside the verifier, in one process (--apart: in one of its own)")
    console.print(f"  logs        {options.logs}        Ctrl-C stops everything")
