"""The `adasd` command."""

from __future__ import annotations

import typer

from adasd.cli.bench import bench
from adasd.cli.chaos import chaos
from adasd.cli.chat import chat
from adasd.cli.distill import distill
from adasd.cli.edge import edge
from adasd.cli.inspect import inspect
from adasd.cli.invent import invent
from adasd.cli.key import app as key
from adasd.cli.up import up

app = typer.Typer(help="AdaSD: adaptive speculative decoding as a service.", no_args_is_help=True, add_completion=False)
app.command()(up)
app.command()(chat)
app.command()(bench)
app.command()(inspect)
app.command()(invent)
app.command()(distill)
app.command()(chaos)
app.command()(edge)
app.add_typer(key, name="key")

if __name__ == "__main__":
    app()
