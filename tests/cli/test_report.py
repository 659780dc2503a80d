"""Prompts in, table out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from adasd.cli.prompts import read_prompts
from adasd.cli.report import Answer, table
from adasd.core.errors import InvalidRequest


def write(path: Path, items: list[object]) -> Path:
    path.write_text("\n".join(json.dumps(item) for item in items))
    return path


def test_prompts_of_the_usual_fields_without_repeats(tmp_path: Path) -> None:
    items = [{"prompt": "a"}, {"question": "b"}, {"turns": ["c", "d"]}, {"prompt": "a"}, "e", {"text": "f"}]
    path = write(tmp_path / "data.jsonl", items)
    assert read_prompts(path, 4) == ["a", "b", "c", "e"]
    with pytest.raises(InvalidRequest, match="holds 5 distinct prompts, 9"):
        read_prompts(path, 9)


def test_files_that_are_no_prompts(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="no such file"):
        read_prompts(tmp_path / "absent.jsonl", 1)
    with pytest.raises(InvalidRequest, match="none of the fields prompt, question"):
        read_prompts(write(tmp_path / "other.jsonl", [{"id": 1}]), 1)
    (tmp_path / "broken.jsonl").write_text("{")
    with pytest.raises(InvalidRequest, match="is not JSON"):
        read_prompts(tmp_path / "broken.jsonl", 1)


def answer(method: str, prompt: int, seconds: float, **fields: float) -> Answer:
    return Answer(method, prompt, 10, seconds, 0.05, **fields)  # type: ignore[arg-type]


def test_ratios_are_paired_by_prompt() -> None:
    counts = {
        "rounds": 10,
        "drafts": 9,
        "drafted": 20,
        "accepted": 10,
        "relaxed": 2,
        "loss_total": 1.0,
        "loss_max": 0.75,
    }
    none = {"rounds": 10, "drafts": 0, "drafted": 0, "accepted": 0, "relaxed": 0}
    answers = [answer("alone", 0, 1.0, **none), answer("alone", 1, 4.0, **none)]
    answers += [answer("fast", 0, 0.5, **counts), answer("fast", 1, 2.0, **counts), answer("peer", 0, 2.0)]
    rows = {
        cells[1].strip(): [c.strip() for c in cells[2:-1]]
        for cells in (r.split("|") for r in table(answers, "alone").splitlines()[2:])
    }
    assert rows["fast"] == ["12.5", "2.00", "0.500", "2.00", "90%", "20.0%", "0.50 / 0.75", "50"]
    assert rows["alone"] == ["6.2", "1.00", "-", "1.00", "0%", "-", "-", "50"]
    assert rows["peer"] == ["5.0", "0.50", "-", "-", "-", "-", "-", "50"]
