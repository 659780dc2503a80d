from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest
from transformers import LlamaForCausalLM

from adasd.distill.generate import Generator, Question
from adasd.distill.prompts import Prompt
from adasd.distill.store import AnswerStore
from adasd.distill.writing import AnswerPlan, write_answers
from tests.distill.conftest import EOS

PROMPTS = [Prompt("s", f"s/{index}", (f"text {index}",)) for index in range(30)]
PLAN = AnswerPlan(temperatures=(0.7, 1.0, 0.0), each=2, seed=3)


def _ids(prompt: Prompt) -> list[int]:
    return [40 + ord(character) for character in prompt.turns[0]]


def _questions() -> Iterator[Question]:
    return PLAN.questions(PROMPTS, _ids, 28)


@pytest.fixture
def generator(target: LlamaForCausalLM) -> Generator:
    return Generator(target, EOS, slots=6, limit=20, length=48)


def _texts(folder: Path) -> dict[str, list[int]]:
    return {answer.question.name: answer.ids.tolist() for answer in AnswerStore(folder).answers()}


def test_each_prompt_takes_its_turn_at_every_temperature() -> None:
    found = [(question.key, question.number, question.temperature) for question in islice(_questions(), 6)]
    assert found == [
        ("s/0", 0, 0.7), ("s/0", 1, 1.0), ("s/1", 0, 1.0), ("s/1", 1, 0.0), ("s/2", 0, 0.0), ("s/2", 1, 0.7)
    ]  # fmt: skip
    assert not list(PLAN.questions(PROMPTS, _ids, 3)), "longer prompts are left out"


def test_killed_and_resumed_writes_the_same_answers_once(generator: Generator, tmp_path: Path) -> None:
    write_answers(generator, _questions(), AnswerStore(tmp_path / "whole", part_bytes=9_000))
    cut = AnswerStore(tmp_path / "cut", part_bytes=9_000)
    for answer in islice(generator.answers(_questions()), 25):  # killed: what was not yet in a part is lost
        cut.add(answer)
    assert 0 < len(_texts(tmp_path / "cut")) < 25
    write_answers(generator, _questions(), AnswerStore(tmp_path / "cut", part_bytes=9_000))
    names = [question.name for question, _ in AnswerStore(tmp_path / "cut").questions()]
    assert len(names) == len(set(names)) == 60
    assert _texts(tmp_path / "cut") == _texts(tmp_path / "whole")


def test_workers_write_the_same_answers_as_one(generator: Generator, tmp_path: Path) -> None:
    write_answers(generator, _questions(), AnswerStore(tmp_path / "one"))
    written = write_answers(generator, _questions(), AnswerStore(tmp_path / "three"), workers=3)
    assert written.answers == 60
    assert _texts(tmp_path / "three") == _texts(tmp_path / "one")


def test_it_stops_when_the_time_is_over(generator: Generator, tmp_path: Path) -> None:
    for workers in (1, 2):
        written = write_answers(generator, _questions(), AnswerStore(tmp_path / str(workers)), 0.0, workers)
        assert 1 <= written.answers == len(_texts(tmp_path / str(workers))) < 60


def test_an_error_of_a_worker_reaches_the_caller(generator: Generator, tmp_path: Path) -> None:
    def broken() -> Iterator[Question]:
        yield from islice(_questions(), 8)
        raise RuntimeError("no more prompts")

    with pytest.raises(RuntimeError, match="no more prompts"):
        write_answers(generator, broken(), AnswerStore(tmp_path), workers=2)
