"""`adasd chat`: an answer streamed to the terminal, then one line of figures."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import httpx
import typer

from adasd.bench.answers import Answer, Reply
from adasd.bench.results import write_trace
from adasd.bench.timeline import shares_table
from adasd.cli.reconnecting import ReconnectingStream
from adasd.core.errors import AdasdError

INTERRUPTED = 130
"""Exit status after Ctrl-C, as shells have it."""


def chat(
    prompt: Annotated[str | None, typer.Argument(help="What to ask; without it, a conversation line by line.")] = None,
    url: Annotated[str, typer.Option(help="The gateway.")] = "http://127.0.0.1:8000",
    model: Annotated[str | None, typer.Option(help="Model name; the server's first if not given.")] = None,
    system: Annotated[str | None, typer.Option(help="System message.")] = None,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.7,
    max_tokens: Annotated[int, typer.Option(help="Longest answer.")] = 512,
    seed: Annotated[int | None, typer.Option(help="Same seed, same text.")] = None,
    stopping: Annotated[str | None, typer.Option(help="off | fixed | adasd | marginal")] = None,
    acceptance: Annotated[str | None, typer.Option(help="exact | adasd | adasd-anchored | coupled")] = None,
    max_candidates: Annotated[int | None, typer.Option(help="Most candidates of a round.")] = None,
    copying: Annotated[
        bool | None, typer.Option(help="Whether candidates may come from the text itself, with marginal.")
    ] = None,
    trace: Annotated[Path | None, typer.Option(help="Chrome trace of every round; with a table of shares.")] = None,
    key: Annotated[str | None, typer.Option(envvar="ADASD_API_KEY", help="API key, if the gateway wants one.")] = None,
) -> None:
    """Stream an answer, then one line: tokens, tokens/s, acceptance, mean length. Ctrl-C stops the answer."""
    rules = {"stopping": stopping, "acceptance": acceptance, "max_candidates": max_candidates, "copying": copying}
    speculation = {key: value for key, value in rules.items() if value is not None}
    speculation |= {"trace": True} if trace else {}
    request: dict[str, Any] = {"temperature": temperature, "max_tokens": max_tokens}
    request |= {"seed": seed} if seed is not None else {}
    request |= {"speculation": speculation} if speculation else {}
    messages = [{"role": "system", "content": system}] if system else []
    answers: list[Answer] = []
    try:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        with httpx.Client(base_url=url, headers=headers, timeout=httpx.Timeout(10, read=300)) as client:
            request["model"] = model or first_model(client)
            for question in [prompt] if prompt else _questions():
                messages.append({"role": "user", "content": question})
                text, told = answer(client, {**request, "messages": messages})
                messages.append({"role": "assistant", "content": text})
                if told is not None:
                    answers.append(told)
                elif prompt:
                    raise typer.Exit(INTERRUPTED)
        if trace:
            write_trace(answers, trace)
            typer.echo(shares_table([answer.reply.rounds for answer in answers if answer.reply]))
    except AdasdError as error:
        typer.secho(f"error: {error}", fg="red", err=True)
        raise typer.Exit(1) from None


def first_model(client: httpx.Client) -> str:
    """The first model the server lists."""
    try:
        return str(client.get("/v1/models").raise_for_status().json()["data"][0]["id"])
    except httpx.HTTPError as error:
        raise AdasdError(f"no answer from {client.base_url}: {error}; is `adasd up` running?") from error


def _questions() -> Iterator[str]:
    """Lines of a conversation, until the end of the input."""
    while True:
        if sys.stdin.isatty():
            typer.secho("> ", fg="green", nl=False)
        line = sys.stdin.readline()
        if not line:
            return
        if line.strip():
            yield line.strip()


def answer(client: httpx.Client, request: dict[str, Any]) -> tuple[str, Answer | None]:
    """Print one answer as it comes; its text, and how it went: None where it was interrupted, and stopped."""
    pieces: list[str] = []
    stream = ReconnectingStream(client, request, lambda words: typer.secho(f" [{words}] ", fg="yellow", err=True))
    try:
        told = _printed(stream, pieces)
    except KeyboardInterrupt:
        stream.stop()
        typer.echo()
        typer.secho("stopped", fg="bright_black")
        told = None
    return "".join(pieces), told


def _printed(stream: ReconnectingStream, pieces: list[str]) -> Answer:
    """Print an answer, and keep its pieces; how it went."""
    begin = time.perf_counter()
    final: dict[str, Any] = {}
    rounds: list[dict[str, Any]] = []
    for chunk in stream:
        rounds += [chunk["adasd"]] if "adasd" in chunk else []
        for choice in chunk["choices"]:
            pieces.append(choice["delta"].get("content") or "")
            typer.echo(pieces[-1], nl=False)
        final = chunk if chunk.get("usage") else final
    typer.echo()
    seconds = time.perf_counter() - begin
    typer.secho(figures(final, seconds), fg="bright_black")
    reply = Reply(final["usage"]["completion_tokens"], (), rounds=tuple(rounds))
    return Answer(variant="chat", data="terminal", load="1 stream", begin=begin, seconds=seconds, reply=reply)


def figures(final: dict[str, Any], seconds: float) -> str:
    """tokens, tokens/s, acceptance, mean length of the final usage chunk."""
    tokens, record = final["usage"]["completion_tokens"], final["speculation"]
    rate = record["acceptance_rate"]
    acceptance = "no candidates" if rate is None else f"acceptance {rate:.0%}"
    length = f"mean length {record['mean_acceptance_length']:.2f}"
    return f"{tokens} tokens, {tokens / seconds:.1f} tokens/s, {acceptance}, {length}"
