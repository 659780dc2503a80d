"""One prompt answered by one variant, and the figures that follow from it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeVar

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Reply:
    """What came back. arrivals: when text came, in seconds after the request.

    tokens: of the answer. prompt_tokens, speculation: None where a peer does not tell. rounds: with `trace`.
    """

    tokens: int
    arrivals: tuple[float, ...]
    prompt_tokens: int | None = None
    speculation: Mapping[str, Any] | None = None
    rounds: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """begin: of the request, in seconds since the run began. error: why there is no reply.

    data, load, context: what it was measured under. batch, prompt, repeat: its place there, alike for all variants.
    """

    variant: str
    data: str
    load: str
    context: int | None = None
    repeat: int = 0
    batch: int = 0
    prompt: int = 0
    begin: float = 0.0
    seconds: float
    reply: Reply | None = None
    error: str | None = None

    @property
    def tokens(self) -> int:
        return self.reply.tokens if self.reply else 0

    @property
    def first(self) -> float | None:
        """Seconds to the first text."""
        return self.reply.arrivals[0] if self.reply and self.reply.arrivals else None

    @property
    def gaps(self) -> list[float]:
        """Seconds between pieces of text as they came; a piece has the tokens of a round."""
        times = self.reply.arrivals if self.reply else ()
        return [after - before for before, after in pairwise(times)]

    @property
    def token_seconds(self) -> float | None:
        """Seconds per token after the first text; None for answers too short to tell."""
        if self.reply is None or self.first is None or self.tokens < 2:
            return None
        return (self.seconds - self.first) / (self.tokens - 1)


def grouped(answers: Iterable[Answer], key: Callable[[Answer], Key]) -> dict[Key, list[Answer]]:
    """Answers by a key, in the order of first appearance."""
    groups: dict[Key, list[Answer]] = {}
    for answer in answers:
        groups.setdefault(key(answer), []).append(answer)
    return groups


def batch_rates(answers: Iterable[Answer]) -> dict[tuple[Hashable, ...], float]:
    """Tokens per second of every batch, from its first request to its last answer.

    A batch with a failure has none: what ran in its place is another load.
    """
    batches = grouped(answers, lambda answer: (answer.data, answer.load, answer.context, answer.repeat, answer.batch))
    complete = {place: group for place, group in batches.items() if all(answer.error is None for answer in group)}
    return {place: _rate(group) for place, group in complete.items()}


def _rate(group: Sequence[Answer]) -> float:
    begin = min(answer.begin for answer in group)
    end = max(answer.begin + answer.seconds for answer in group)
    return sum(answer.tokens for answer in group) / (end - begin)
