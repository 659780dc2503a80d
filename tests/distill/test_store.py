from __future__ import annotations

from pathlib import Path

import torch

from adasd.distill.generate import Answer, Question
from adasd.distill.store import AnswerStore


def _answer(index: int, length: int) -> Answer:
    torch.manual_seed(index)
    question = Question("set", f"set/{index}", index % 3, tuple(range(index + 1)), 0.7, 11)
    return Answer(
        question,
        torch.randint(0, 300, (length,), dtype=torch.int32),
        torch.randn(length, 32).half(),
        torch.randn(length),
    )


def _same(left: Answer, right: Answer) -> bool:
    tensors = ((left.ids, right.ids), (left.hidden, right.hidden), (left.log_normalizers, right.log_normalizers))
    return left.question == right.question and all(torch.equal(a, b) for a, b in tensors)


def test_what_is_added_comes_back_from_parts_within_their_limit(tmp_path: Path) -> None:
    answers = [_answer(index, 1 + index * 7 % 240) for index in range(60)]
    store = AnswerStore(tmp_path, part_bytes=20_000)
    for answer in answers:
        store.add(answer)
    store.flush()
    parts = AnswerStore(tmp_path).parts()
    assert len(parts) > 5
    assert all(part.stat().st_size <= 20_000 for part in parts)
    assert all(_same(a, b) for a, b in zip(AnswerStore(tmp_path).answers(), answers, strict=True))
    found = [(question.name, length) for question, length in AnswerStore(tmp_path).questions()]
    assert found == [(answer.question.name, len(answer.ids)) for answer in answers]


def test_a_part_cut_short_is_dropped_and_its_number_taken_again(tmp_path: Path) -> None:
    store = AnswerStore(tmp_path)
    store.add(_answer(1, 5))
    store.flush()
    for number in (1, 7):
        (tmp_path / f"part-{number:05d}.partial").write_bytes(b"half a header")
    resumed = AnswerStore(tmp_path)
    resumed.add(_answer(2, 5))
    resumed.flush()
    assert [part.name for part in resumed.parts()] == ["part-00000.safetensors", "part-00001.safetensors"]
    assert [answer.question.key for answer in resumed.answers()] == ["set/1", "set/2"]
    assert not list(tmp_path.glob("*.partial"))
