"""Prompts brought to a length: the end of one prompt behind as much of the others as fits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, cycle, islice

from tokenizers import Tokenizer

SEPARATOR = "\n\n"


def lengthened(texts: Sequence[str], tokenizer: Tokenizer, tokens: int) -> list[list[Mapping[str, str]]]:
    """One conversation a text: its last `tokens` tokens, after the other texts in turn. No two begin alike.

    The chat template adds a few tokens, and text cut between tokens may be read as others: servers count again.
    """
    encoded = [tokenizer.encode(text + SEPARATOR, add_special_tokens=False).ids for text in texts]
    return [
        [{"role": "user", "content": tokenizer.decode(list(_last(encoded, index, tokens))).rstrip()}]
        for index in range(len(texts))
    ]


def _last(encoded: Sequence[Sequence[int]], index: int, tokens: int) -> Iterator[int]:
    """The last ids of endlessly many texts of which text `index` is the last."""
    backwards = cycle([*reversed(encoded[: index + 1]), *reversed(encoded[index + 1 :])])
    ids = islice(chain.from_iterable(reversed(text) for text in backwards), tokens)
    return reversed(list(ids))
