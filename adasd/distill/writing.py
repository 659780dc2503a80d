"""The first stage: a target writes answers into a store until a count or a time is reached; resumable at any point."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter

import torch

from adasd.distill.generate import Answer, Generator, Question
from adasd.distill.prompts import Prompt
from adasd.distill.store import AnswerStore

FLUSH_SECONDS = 120.0
"""A kill loses at most what was finished in this time, and what was in flight."""

Tokenize = Callable[[Prompt], Sequence[int]]
Report = Callable[["Written"], None]


@dataclass(frozen=True, slots=True)
class AnswerPlan:
    """How each prompt is answered: the n-th prompt takes `each` temperatures from the n-th on, in a circle."""

    temperatures: tuple[float, ...] = (0.7, 1.0, 0.8, 0.7, 1.0, 0.0)
    each: int = 3
    seed: int = 0

    def questions(self, prompts: Sequence[Prompt], tokenize: Tokenize, longest: int) -> Iterator[Question]:
        """Questions in order, those of one prompt together; prompts of more than `longest` tokens are left out."""
        for index, prompt in enumerate(prompts):
            ids = tuple(tokenize(prompt))
            if len(ids) > longest:
                continue
            for number in range(self.each):
                temperature = self.temperatures[(index + number) % len(self.temperatures)]
                yield Question(prompt.source, prompt.key, number, ids, temperature, self.seed)


@dataclass(slots=True)
class Written:
    """Progress of this run. tokens, answers: written. seconds: since it began."""

    answers: int = 0
    tokens: int = 0
    seconds: float = 0.0


def write_answers(
    generator: Generator,
    questions: Iterator[Question],
    store: AnswerStore,
    seconds: float | None = None,
    workers: int = 1,
    report: Report = lambda written: None,
) -> Written:
    """Answer the questions the store lacks, until they or the seconds run out.

    workers: threads that step their own rows, each with one thread of torch's: on a busy machine they keep their pace
    where the barriers of parallel kernels would wait for each other at every layer.
    """
    done = {question.name for question, _ in store.questions()}
    missing = (question for question in questions if question.name not in done)
    written, started = Written(), time.monotonic()
    flushed = started
    for answer in in_flight(generator, missing, workers):
        store.add(answer)
        written.answers += 1
        written.tokens += len(answer.ids)
        written.seconds = time.monotonic() - started
        report(written)
        if time.monotonic() - flushed >= FLUSH_SECONDS:
            store.flush()
            flushed = time.monotonic()
        if seconds is not None and written.seconds >= seconds:
            break
    store.flush()
    return written


def in_flight(generator: Generator, questions: Iterator[Question], workers: int) -> Iterator[Answer]:
    """Answers in the order they are finished, by so many threads."""
    if workers == 1:
        yield from generator.answers(questions)
        return
    shared, answers, stop = _Shared(questions), queue.Queue[Answer | BaseException | None](), threading.Event()
    threads = [
        threading.Thread(target=_work, args=(generator, shared, answers, stop), daemon=True) for _ in range(workers)
    ]
    for thread in threads:
        thread.start()
    try:
        yield from _collected(answers, workers)
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def _work(
    generator: Generator, questions: _Shared, answers: queue.Queue[Answer | BaseException | None], stop: threading.Event
) -> None:
    torch.set_num_threads(1)
    try:
        for answer in generator.answers(questions, stop.is_set):
            answers.put(answer)
        answers.put(None)
    except BaseException as error:
        answers.put(error)


def _collected(answers: queue.Queue[Answer | BaseException | None], workers: int) -> Iterator[Answer]:
    """Answers until every worker has said that it is done; the first error of one ends them all."""
    while workers:
        answer = answers.get()
        if isinstance(answer, BaseException):
            raise answer
        if answer is None:
            workers -= 1
        else:
            yield answer


class _Shared:
    """One iterator for several threads; questions with the same prompt go to one of them, which reads it once."""

    def __init__(self, questions: Iterator[Question]) -> None:
        self._groups, self._lock = groupby(questions, attrgetter("key")), threading.Lock()

    def __iter__(self) -> Iterator[Question]:
        while group := self._next():
            yield from group

    def _next(self) -> list[Question]:
        with self._lock:
            _, group = next(self._groups, (None, ()))
            return list(group)
