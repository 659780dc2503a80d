"""Asks: every variant in its turn, as many streams at a time as its load says, with a stopwatch."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from random import Random
from typing import Any

import httpx

from adasd.bench.answers import Answer, Reply
from adasd.bench.schedule import Turn
from adasd.bench.sse import stream_chat
from adasd.core.errors import AdasdError

Messages = Sequence[Mapping[str, str]]
Ask = Callable[[Messages, int], Reply]
"""Answers a conversation, with that seed. Raises AdasdError."""
WARM_UP: Messages = ({"role": "user", "content": "Say hello."},)
MARKS = ("rounds", "drafted", "accepted", "tokens", "timing")


@dataclass(frozen=True, slots=True)
class HttpChat:
    """A server that speaks OpenAI's chat API. request: its model and everything else that all requests have; of a range
    each has the value that its seed draws. seeded: whether requests carry their seeds.
    """

    client: httpx.Client
    request: Mapping[str, Any]
    seeded: bool = True

    def __call__(self, messages: Messages, seed: int) -> Reply:
        """Tokens are what the server counted, or the pieces of text from one that never tells: one a token there."""
        begin = time.perf_counter()
        arrivals: list[float] = []
        rounds: list[Mapping[str, Any]] = []
        last: dict[str, Any] = {}
        alike = {
            name: drawn(value, seed) if isinstance(value, range) else value for name, value in self.request.items()
        }
        body = {**alike, "messages": messages} | ({"seed": seed} if self.seeded else {})
        for chunk in stream_chat(self.client, body):
            if any(choice["delta"].get("content") for choice in chunk["choices"]):
                arrivals.append(time.perf_counter() - begin)
            if marks := chunk.get("adasd"):
                rounds.append({name: marks[name] for name in MARKS})
            last |= {name: chunk[name] for name in ("usage", "speculation") if chunk.get(name)}
        usage = last.get("usage", {})
        return Reply(
            tokens=usage.get("completion_tokens", len(arrivals)),
            arrivals=tuple(arrivals),
            prompt_tokens=usage.get("prompt_tokens"),
            speculation=last.get("speculation"),
            rounds=tuple(rounds),
        )


def drawn(values: range, seed: int) -> int:
    """One of them, the same for the same seed."""
    return values[Random(seed).randrange(len(values))]


def warm_up(asks: Mapping[str, Ask]) -> Iterator[str]:
    """Ask every variant once; the names of those that answered. Raises AdasdError, naming one that does not."""
    for name, ask in asks.items():
        try:
            ask(WARM_UP, 0)
        except AdasdError as error:
            raise AdasdError(f"{name} does not answer: {error}") from error
        yield name


def run(
    turns: Iterable[Turn], asks: Mapping[str, Ask], prompts: Mapping[tuple[str, int | None], Sequence[Messages]]
) -> Iterator[list[Answer]]:
    """The answers of every turn. prompts: by data file and context. What fails is an answer too, with its error."""
    begin = time.perf_counter()
    for turn in turns:
        asked = prompts[turn.data, turn.context]
        start = time.perf_counter()
        dues = [start + arrival for arrival in turn.load.arrivals(len(turn.prompts), turn.seed)]
        with ThreadPoolExecutor(turn.load.streams or len(turn.prompts)) as pool:
            jobs = [
                pool.submit(_answer, turn, prompt, asks[turn.variant], asked[prompt], due, begin)
                for prompt, due in zip(turn.prompts, dues, strict=True)
            ]
        yield [job.result() for job in jobs]


def _answer(turn: Turn, prompt: int, ask: Ask, messages: Messages, due: float, zero: float) -> Answer:
    """Ask when it is due. zero: when the run began, as `time.perf_counter` counts."""
    time.sleep(max(0.0, due - time.perf_counter()))
    begin, reply, error = time.perf_counter(), None, None
    try:
        reply = ask(messages, turn.request_seed(prompt))
    except AdasdError as failure:
        error = f"{type(failure).__name__}: {failure}"
    return Answer(
        variant=turn.variant,
        data=turn.data,
        load=turn.load.name,
        context=turn.context,
        repeat=turn.repeat,
        batch=turn.batch,
        prompt=prompt,
        begin=begin - zero,
        seconds=time.perf_counter() - begin,
        reply=reply,
        error=error,
    )
