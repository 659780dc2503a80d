"""Answers on disk: numbered parts of a bounded size, each written whole or not at all."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from adasd.distill.generate import Answer, Question

PART_BYTES = 16_000_000
_HEADER_SHARE = 8
"""Bytes of header that an id may need on top of its tensors; only ever an upper bound."""


class AnswerStore:
    """A folder of `part-*.safetensors`. One writer; what was added since the last part is lost with the process."""

    def __init__(self, folder: Path, part_bytes: int = PART_BYTES) -> None:
        self._folder, self._part_bytes = folder, part_bytes
        self._buffer: list[Answer] = []
        self._size = 0
        folder.mkdir(parents=True, exist_ok=True)
        for unfinished in folder.glob("*.partial"):
            unfinished.unlink()

    def add(self, answer: Answer) -> None:
        """Keep an answer; writes a part when the next would grow past its limit."""
        size = _bytes(answer)
        if self._buffer and self._size + size > self._part_bytes:
            self.flush()
        self._buffer.append(answer)
        self._size += size

    def flush(self) -> None:
        """Write what is waiting."""
        if self._buffer:
            _write_part(self._folder / f"part-{self._next_number():05d}.safetensors", self._buffer)
        self._buffer, self._size = [], 0

    def questions(self) -> Iterator[tuple[Question, int]]:
        """Every stored question with the length of its answer, without reading the answers."""
        for part in self.parts():
            with safe_open(part, framework="pt") as tensors:
                yield from _records(tensors)

    def answers(self) -> Iterator[Answer]:
        """Every stored answer."""
        for part in self.parts():
            yield from _read_part(part)

    def parts(self) -> list[Path]:
        return sorted(self._folder.glob("part-*.safetensors"))

    def _next_number(self) -> int:
        parts = self.parts()
        return int(parts[-1].stem.removeprefix("part-")) + 1 if parts else 0


def _bytes(answer: Answer) -> int:
    tensors = answer.ids.nbytes + answer.hidden.nbytes + answer.log_normalizers.nbytes
    return tensors + 1024 + _HEADER_SHARE * len(answer.question.prompt)


def _write_part(path: Path, answers: list[Answer]) -> None:
    partial = path.with_suffix(".partial")
    records = [_record(answer) for answer in answers]
    prompts = torch.tensor([token for answer in answers for token in answer.question.prompt], dtype=torch.int32)
    tensors = {
        "prompts": prompts,
        "ids": torch.cat([answer.ids for answer in answers]),
        "hidden": torch.cat([answer.hidden for answer in answers]),
        "log_normalizers": torch.cat([answer.log_normalizers for answer in answers]),
    }
    save_file(tensors, partial, metadata={"records": json.dumps(records)})
    with partial.open("rb") as written:
        os.fsync(written.fileno())
    partial.rename(path)


def _record(answer: Answer) -> dict[str, Any]:
    record = asdict(answer.question)
    return record | {"prompt": len(answer.question.prompt), "answer": len(answer.ids)}


def _records(tensors: Any) -> Iterator[tuple[Question, int]]:
    prompts, start = tensors.get_tensor("prompts").tolist(), 0
    names = [field.name for field in fields(Question)]
    for record in json.loads(tensors.metadata()["records"]):
        length, answer = record["prompt"], record["answer"]
        known = {name: record[name] for name in names}
        yield Question(**known | {"prompt": tuple(prompts[start : start + length])}), answer
        start += length


def _read_part(path: Path) -> Iterator[Answer]:
    with safe_open(path, framework="pt") as tensors:
        columns = [tensors.get_tensor(name) for name in ("ids", "hidden", "log_normalizers")]
        start = 0
        for question, length in _records(tensors):
            yield Answer(question, *(column[start : start + length] for column in columns))
            start += length
