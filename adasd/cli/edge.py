"""`adasd edge`: whether slow readers and long prompts keep others waiting."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Annotated

import httpx
import typer

from adasd.bench.edge import HEAD, Edge
from adasd.cli.chat import first_model
from adasd.cli.stack import Stack
from adasd.cli.up import stack_options
from adasd.core.errors import AdasdError

READY_SECONDS = 600.0


def edge(
    url: Annotated[
        str | None, typer.Option(help="A running gateway without keys; one is started if not given.")
    ] = None,
    target: Annotated[str | None, typer.Option(help="Start it with this model, not the demo pair's.")] = None,
    draft: Annotated[str | None, typer.Option(help="Likewise.")] = None,
    seconds: Annotated[float, typer.Option(help="For each line of the table.", min=1)] = 30.0,
    readers: Annotated[int, typer.Option(help="Clients that read a byte a second.", min=1)] = 50,
    posters: Annotated[int, typer.Option(help="Clients that send long prompts.", min=1)] = 2,
    megabytes: Annotated[float, typer.Option(help="Of each long prompt.", min=0.001)] = 5.0,
    body_limit: Annotated[bool, typer.Option(help="Off: the started gateway reads bodies of any such size.")] = True,
) -> None:
    """How long /healthz takes while many clients read slowly and others send prompts of megabytes."""
    prompt_bytes = round(megabytes * 1e6)
    try:
        with _gateway(url, target, draft, None if body_limit else 2 * prompt_bytes) as address:
            with httpx.Client(base_url=address, timeout=30) as client:
                model = first_model(client)
            typer.echo(table(Edge(address, model, readers, posters, prompt_bytes), seconds))
    except AdasdError as error:
        typer.secho(f"error: {error}", fg="red", err=True)
        raise typer.Exit(1) from None


def table(edge: Edge, seconds: float) -> str:
    """Latencies of /healthz: nothing else going on, with slow readers, with long prompts too."""
    statuses: list[int] = []
    lines = [HEAD, edge.probed(seconds).row("nothing")]
    with edge.slow_readers():
        lines.append(edge.probed(seconds).row(f"{edge.readers} readers of a byte a second"))
        with edge.long_prompts(statuses):
            latencies = edge.probed(seconds)
    answered = ", ".join(f"{count} x {status}" for status, count in sorted(Counter(statuses).items()))
    name = f"and prompts of {edge.prompt_bytes / 1e6:g} MB from {edge.posters} clients ({answered or 'none answered'})"
    return "\n".join([*lines, latencies.row(name)])


@contextmanager
def _gateway(url: str | None, target: str | None, draft: str | None, body_bytes: int | None) -> Iterator[str]:
    """The URL of a gateway. body_bytes: of one that is started here; None leaves its own limits."""
    if url is not None:
        yield url
        return
    options = stack_options(target, draft, None, host="127.0.0.1", port=0, redis_url=None, logs=None)
    if body_bytes is not None:
        limits = ("MAX_BODY_BYTES", "MAX_MESSAGE_CHARACTERS")
        options = replace(options, environment={f"ADASD_GATEWAY_{name}": str(body_bytes) for name in limits})
    with Stack(options) as stack:
        stack.wait_ready(READY_SECONDS)
        yield stack.url
