"""Prompts brought to a length: the end of one prompt behind as much of the others as fits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain, cycle, islice

from tokenizers import Tokenizer

SEPARATOR = "\n\n"


def lengthened(texts: Sequence[str], tokenizer: Tokenizer, tokens: int) -> list[list[Mapping[str, str]]]:
    """One conversation a text: its last `tokens` tokens, after the other texts in turn. No two begin alike.

    The chat template adds a few tokens; text that is read as others where it was joined makes them a few less.
    """
    encoded = [_ids(text + SEPARATOR, tokenizer) for text in texts]
    return [
        [{"role": "user", "content": _at_most(_last(encoded, index, tokens), tokenizer, tokens)}]
        for index in range(len(texts))
    ]


def _ids(text: str, tokenizer: Tokenizer) -> list[int]:
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
    return ids


def _last(encoded: Sequence[Sequence[int]], index: int, tokens: int) -> list[int]:
    """The last ids of endlessly many texts of which text `index` is the last."""
    backwards = cycle([*reversed(encoded[: index + 1]), *reversed(encoded[index + 1 :])])
    ids = islice(chain.from_iterable(reversed(text) for text in backwards), tokens)
    return [*ids][::-1]


def _at_most(ids: Sequence[int], tokenizer: Tokenizer, tokens: int) -> str:
    """Their text, or the end of it that reads as so many ids."""
    while True:
        text: str = tokenizer.decode(list(ids)).rstrip()
        ids = _ids(text, tokenizer)
        if len(ids) <= tokens:
            return text
        ids = ids[len(ids) - tokens :]
