"""A grammar of a few texts, each a tuple of ids: what one means without any library."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import numpy as np

from adasd.core.grammar import BoolArray, Grammar


@dataclass
class Listed:
    """`Matcher` of exactly these texts over ids below `width`. moves: tokens taken in and given back so far."""

    texts: Collection[tuple[int, ...]]
    width: int
    text: tuple[int, ...] = ()
    moves: int = 0

    def advance(self, tokens: Sequence[int]) -> int:
        for taken, token in enumerate(tokens):
            if token not in self._next():
                return taken
            self.text += (token,)
            self.moves += 1
        return len(tokens)

    def rollback(self, count: int) -> None:
        self.text = self.text[: len(self.text) - count]
        self.moves += count

    def allowed(self) -> BoolArray:
        return np.isin(np.arange(self.width), list(self._next()))

    @property
    def accepting(self) -> bool:
        return self.text in self.texts

    def _next(self) -> set[int]:
        place = len(self.text)
        return {text[place] for text in self.texts if len(text) > place and text[:place] == self.text}


@dataclass
class ListedGrammars:
    """`Grammars` that are the same texts for every grammar. begun: the matchers so far."""

    texts: Collection[tuple[int, ...]]
    width: int
    begun: list[Listed] = field(default_factory=list)

    def start(self, grammar: Grammar, eos_ids: Collection[int]) -> Listed:
        self.begun.append(Listed(self.texts, self.width))
        return self.begun[-1]
