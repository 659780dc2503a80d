"""`adasd bench`: methods side by side over the running services, interleaved in one run, beside transformers itself."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import httpx
import typer
from rich.progress import track

from adasd.cli.chat import first_model
from adasd.cli.peers import Transformers
from adasd.cli.prompts import read_prompts
from adasd.cli.report import Answer, table
from adasd.cli.sse import stream_chat
from adasd.cli.stack import Stack
from adasd.cli.up import stack_options
from adasd.core.errors import AdasdError

Ask = Callable[[int, str], Answer]
TARGET_ALONE = "target alone"


@dataclass(frozen=True, slots=True)
class Method:
    """A stopping rule and an acceptance rule under the name the paper gives their combination.

    seeded: False for a rule that is to follow the costs measured here, which a seeded text must not depend on.
    """

    name: str
    stopping: str
    acceptance: str
    seeded: bool = True

    @property
    def speculation(self) -> dict[str, str]:
        return {"stopping": self.stopping, "acceptance": self.acceptance}


METHODS = (
    Method(TARGET_ALONE, "off", "exact"),
    Method("vanilla (fixed 5)", "fixed", "exact"),
    Method("Gen-Only", "adasd", "exact"),
    Method("Verify-Only (fixed 5)", "fixed", "adasd"),
    Method("AdaSD", "adasd", "adasd"),
    Method("AdaSD anchored", "adasd", "adasd-anchored"),
    Method("marginal", "marginal", "exact", seeded=False),
    Method("marginal, anchored", "marginal", "adasd-anchored", seeded=False),
)


def bench(
    data: Annotated[Path, typer.Option(help="JSON lines with prompts.")],
    prompts: Annotated[int, typer.Option(help="How many of them.")] = 10,
    max_tokens: Annotated[int, typer.Option(help="Longest answer.")] = 64,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.8,
    url: Annotated[str | None, typer.Option(help="A running gateway; the demo pair is started if not given.")] = None,
    peers: Annotated[bool, typer.Option(help="Run transformers' generate on the demo pair too.")] = True,
    out: Annotated[Path | None, typer.Option(help="Write the single answers here, as JSON.")] = None,
) -> None:
    """Tokens per second of every method on the same prompts, interleaved; medians and ratios."""
    try:
        questions = read_prompts(data, prompts)
        with _gateway(url) as address, httpx.Client(base_url=address, timeout=httpx.Timeout(10, read=600)) as client:
            request = {"model": first_model(client), "max_tokens": max_tokens, "temperature": temperature}
            asks = {method.name: _service(client, request, method) for method in METHODS}
            asks |= _peers(max_tokens, temperature) if peers else {}
            answers = list(_interleaved(asks, questions))
    except AdasdError as error:
        typer.secho(f"error: {error}", fg="red", err=True)
        raise typer.Exit(1) from None
    typer.echo(f"{data.name}: {prompts} prompts, at most {max_tokens} tokens, temperature {temperature:g}\n")
    typer.echo(table(answers, TARGET_ALONE))
    if out:
        out.write_text(json.dumps([asdict(answer) for answer in answers], indent=1))


@contextmanager
def _gateway(url: str | None) -> Iterator[str]:
    """The given gateway, or a stack of our own with the demo pair."""
    if url:
        yield url
        return
    with Stack(stack_options(None, None, None, host="127.0.0.1", port=0, redis_url=None, logs=None)) as stack:
        stack.wait_ready(600)
        yield stack.url


def _interleaved(asks: dict[str, Ask], questions: list[str]) -> Iterator[Answer]:
    """Every method answers a prompt before the next one comes, in an order that rotates; one warm-up each."""
    names = list(asks)
    for name in track(names, "warm-up"):
        asks[name](0, "Say hello.")
    for index, question in enumerate(track(questions, "prompts")):
        for name in names[index % len(names) :] + names[: index % len(names)]:
            yield asks[name](index, question)


def _service(client: httpx.Client, request: dict[str, Any], method: Method) -> Ask:
    def ask(index: int, prompt: str) -> Answer:
        seed = index if method.seeded else None
        body = {**request, "seed": seed, "speculation": method.speculation}
        body["messages"] = [{"role": "user", "content": prompt}]
        begin, first, final = time.perf_counter(), None, {}
        for chunk in stream_chat(client, body):
            if first is None and any(choice["delta"].get("content") for choice in chunk["choices"]):
                first = time.perf_counter() - begin
            final = chunk
        record = final["speculation"]
        relaxed, mean = record["relaxed"], record["relaxed_loss_mean"] or 0.0
        return Answer(
            method=method.name,
            prompt=index,
            tokens=final["usage"]["completion_tokens"],
            seconds=time.perf_counter() - begin,
            first_token_seconds=first,
            loss_total=relaxed * mean,
            loss_max=record["relaxed_loss_max"] or 0.0,
            **{name: record[name] for name in ("rounds", "drafts", "drafted", "accepted", "relaxed")},
        )

    return ask


def _peers(max_tokens: int, temperature: float) -> dict[str, Ask]:
    from adasd.runtime.pair import ensure_demo_pair

    pair = ensure_demo_pair()
    transformers = Transformers(pair.target, pair.draft)

    def asking(name: str, assisted: bool) -> Ask:
        return lambda index, prompt: transformers.answer(name, index, prompt, max_tokens, temperature, assisted)

    plain, assisted = "transformers, target alone", "transformers, assisted generation"
    return {plain: asking(plain, False), assisted: asking(assisted, True)}
