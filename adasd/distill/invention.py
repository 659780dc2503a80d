"""Prompts that the target makes up itself (Magpie, arXiv 2406.08464): what its chat template puts before a user's
words, sampled on, gives a user's words.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from adasd.core.errors import InvalidRequest
from adasd.distill.generate import Answer, Generator, Question
from adasd.distill.prompts import items
from adasd.distill.teacher import Teacher
from adasd.distill.writing import in_flight

TEMPERATURES = (0.8, 1.0)
"""In turns."""
SHORTEST = 8
"""Characters of a prompt."""
RUN = 8
"""Words in a row that no two texts share by chance."""
_MARK = "\u0001the user's words\u0001"


class Invented(NamedTuple):
    """number: which of the attempts it came of."""

    number: int
    text: str


def invent(
    teacher: Teacher, numbers: Iterable[int], seed: int, limit: int, slots: int, workers: int
) -> Iterator[Invented]:
    """One text an attempt, in the order they end; none of one that reaches `limit` tokens or says next to nothing.

    Each depends on seed and number alone. Raises InvalidRequest at once for a target without a chat template.
    """
    opening = teacher.tokenize.opening(_MARK)
    questions = (
        Question("invented", f"invented/{number}", number, opening, TEMPERATURES[number % len(TEMPERATURES)], seed)
        for number in numbers
    )
    generator = Generator(teacher.fresh_model(), teacher.eos_ids, slots, limit, limit + len(opening))
    return _texts(teacher, in_flight(generator, questions, workers))


def _texts(teacher: Teacher, answers: Iterable[Answer]) -> Iterator[Invented]:
    for answer in answers:
        *ids, last = answer.ids.tolist()
        if last in teacher.eos_ids and len(text := teacher.tokenize.text(ids).strip()) >= SHORTEST:
            yield Invented(answer.question.number, text)


class Apart:
    """Tells texts that are, or share RUN words in a row with, one of some others: of a benchmark's, say."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._runs: set[tuple[str, ...]] = set()
        self._whole: set[tuple[str, ...]] = set()
        for words in map(_words, texts):
            self._runs |= _runs(words)
            self._whole.add(words)

    @classmethod
    def of_files(cls, paths: Collection[Path]) -> Apart:
        """From whatever text is in files of JSON lines, or of a JSON list. Raises InvalidRequest for others."""
        for path in paths:
            if not path.is_file():
                raise InvalidRequest(f"no prompt file {path}", "apart_from")
        return cls(text for path in paths for _, item in items(path) for text in _strings(item))

    def __contains__(self, text: object) -> bool:
        """Whether a text is apart from all of them."""
        words = _words(str(text))
        return words not in self._whole and self._runs.isdisjoint(_runs(words))


def _strings(item: Any) -> Iterator[str]:
    """However deep in it they stand."""
    if isinstance(item, str):
        yield item
    elif isinstance(item, dict | list):
        for part in item.values() if isinstance(item, dict) else item:
            yield from _strings(part)


def _words(text: str) -> tuple[str, ...]:
    return tuple(re.findall(r"\w+", text.lower()))


def _runs(words: Sequence[str]) -> set[tuple[str, ...]]:
    return {tuple(words[place : place + RUN]) for place in range(len(words) - RUN + 1)}
