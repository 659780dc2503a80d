"""`adasd key new`: a key for the gateway, shown once, and the line that lets it in."""

from __future__ import annotations

from typing import Annotated

import typer

from adasd.core.errors import AdasdError
from services.gateway.keys import key_line, new_key

app = typer.Typer(help="API keys of the gateway.", no_args_is_help=True)


@app.callback()
def keys() -> None:
    """API keys of the gateway."""


@app.command()
def new(
    name: Annotated[str, typer.Argument(help="Whose key it is: a name for logs and bounds.")],
    rate: Annotated[int | None, typer.Option(min=1, help="Requests a minute.")] = None,
    concurrency: Annotated[int | None, typer.Option(min=1, help="Requests at a time.")] = None,
) -> None:
    """Print a fresh key, to standard error, and the line for ADASD_GATEWAY_KEYS_FILE, to standard output."""
    key = new_key()
    try:
        line = key_line(name, key, rate, concurrency)
    except AdasdError as error:
        typer.secho(f"error: {error}", fg="red", err=True)
        raise typer.Exit(1) from None
    typer.echo(f"key, not shown again: {key}", err=True)
    typer.echo(line)
