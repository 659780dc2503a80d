"""What runs when: variants take turns batch by batch, so that whatever changes on the machine hits all of them."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, count, pairwise, product

from adasd.core.errors import InvalidRequest

PROMPTS_A_STREAM = 4
"""In a batch, where there are as many: a batch ends with its slowest stream, and the others idle until then."""


@dataclass(frozen=True, slots=True)
class Load:
    """Either so many streams, each with a next request as soon as its last one is answered; or requests that arrive
    at random, `rate` a second on average, whoever is still waiting."""

    streams: int | None = None
    rate: float | None = None

    @property
    def name(self) -> str:
        if self.rate is not None:
            return f"{self.rate:g} requests/s"
        return "1 stream" if self.streams == 1 else f"{self.streams} streams"

    @property
    def alone(self) -> bool:
        """One request at a time."""
        return self.streams == 1

    def batches(self, prompts: int) -> list[range]:
        """Which prompts run together: one at a time for one stream, all of them if they arrive by themselves."""
        if self.streams is None:
            return [range(prompts)]
        if prompts < self.streams:
            raise InvalidRequest(f"{self.name} need at least as many prompts, got {prompts}", "concurrency")
        size = 1 if self.alone else min(prompts, PROMPTS_A_STREAM * self.streams)
        bounds = [number * prompts // (prompts // size) for number in range(prompts // size + 1)]
        return [range(begin, end) for begin, end in pairwise(bounds)]

    def arrivals(self, requests: int, seed: int) -> list[float]:
        """When each request of a batch arrives, in seconds after its first. The same for every variant."""
        if self.rate is None:
            return [0.0] * requests
        draws = random.Random(seed)
        gaps = (draws.expovariate(self.rate) for _ in range(requests - 1))
        return list(accumulate(gaps, initial=0.0))


def parse_loads(concurrency: str, arrival: str) -> tuple[Load, ...]:
    """One load per number of streams (`closed`), or per rate (`poisson:0.5,1`). Raises InvalidRequest."""
    kind, _, rates = arrival.partition(":")
    match kind:
        case "closed" if not rates:
            return tuple(Load(streams=streams) for streams in parse_counts(concurrency, "concurrency"))
        case "poisson" if rates:
            return tuple(Load(rate=rate) for rate in _positive(rates, "arrival"))
    raise InvalidRequest(f"arrival must be closed or poisson:RATE, got {arrival!r}", "arrival")


def parse_counts(text: str, name: str) -> tuple[int, ...]:
    """Whole numbers from 1 of a list with commas. Raises InvalidRequest, naming the option."""
    numbers = _positive(text, name)
    if any(number != int(number) for number in numbers):
        raise InvalidRequest(f"{name} must be whole numbers, got {text!r}", name)
    return tuple(map(int, numbers))


def _positive(text: str, name: str) -> tuple[float, ...]:
    try:
        numbers = tuple(float(part) for part in text.split(","))
    except ValueError:
        raise InvalidRequest(f"{name} must be numbers with commas between, got {text!r}", name) from None
    if not all(0 < number < float("inf") for number in numbers):
        raise InvalidRequest(f"{name} must be above 0, got {text!r}", name)
    return numbers


@dataclass(frozen=True, slots=True)
class Turn:
    """One variant's turn with one batch. context: prompt tokens that every prompt is brought to; None as it is."""

    variant: str
    data: str
    load: Load
    context: int | None
    repeat: int
    batch: int
    prompts: range

    @property
    def seed(self) -> int:
        """Of the batch's arrivals; the same for all variants."""
        return 1_000_003 * self.repeat + self.batch

    def request_seed(self, prompt: int) -> int:
        """Of one answer; the same for all variants."""
        return 1_000_003 * self.repeat + prompt


def turns(
    variants: Sequence[str],
    data: Sequence[str],
    loads: Sequence[Load],
    contexts: Sequence[int | None],
    repeat: int,
    prompts: int,
    alone: frozenset[str] = frozenset(),
) -> Iterator[Turn]:
    """Every variant has its turn with a batch before the next batch comes, in an order that rotates.

    prompts: of every data file. alone: variants that answer one request at a time; they sit out other loads.
    """
    for load, context in product(loads, contexts):
        able = [variant for variant in variants if load.alone or variant not in alone]
        rotation = count()
        for again, (number, batch) in product(range(repeat), enumerate(load.batches(prompts))):
            for name in data:
                for variant in rotated(able, next(rotation)):
                    yield Turn(variant, name, load, context, again, number, batch)


def rotated(items: Sequence[str], by: int) -> list[str]:
    """The items, beginning with another one each time."""
    start = by % len(items) if items else 0
    return [*items[start:], *items[:start]]
