"""Prompts that the target makes up: where they begin, what is left out, and how a run goes on."""

from __future__ import annotations

import json
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
import typer
from transformers import AutoTokenizer
from typer.testing import CliRunner

from adasd.cli.invent import invent
from adasd.distill import generate
from adasd.distill.invention import RUN, Apart
from adasd.distill.invention import invent as texts
from adasd.distill.prompts import read_prompts
from adasd.distill.teacher import Teacher, TeacherTokenizer

TEMPLATE = "w1. w45. {% for message in messages %}w46. {{ message.content }} w2. {% endfor %}"


@pytest.fixture(scope="module")
def chatty(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target with a chat template."""
    chatty = tmp_path_factory.mktemp("chatty") / "target"
    shutil.copytree(folder / "target", chatty)
    tokenizer = AutoTokenizer.from_pretrained(chatty)
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(chatty)
    return chatty


def run(target: Path, out: Path, *more: str) -> tuple[int, str]:
    app = typer.Typer()
    app.command()(invent)
    small = ["--count", "40", "--limit", "12", "--slots", "8"]
    result = CliRunner().invoke(app, ["--target", str(target), "--out", str(out), *small, *more])
    return result.exit_code, result.output


def told(out: Path) -> dict[int, str]:
    return {item["number"]: item["prompt"] for item in map(json.loads, out.read_text().splitlines())}


def test_a_users_words_begin_where_the_template_has_them(chatty: Path) -> None:
    tokenize = TeacherTokenizer(chatty)
    assert tokenize.text(tokenize.opening("w99.")) == "w1. w45. w46."


def test_prompts_are_what_the_target_goes_on_with_and_can_be_answered(chatty: Path, tmp_path: Path) -> None:
    out = tmp_path / "invented.jsonl"
    code, said = run(chatty, out)
    assert code == 0, said
    prompts = told(out)
    assert 10 < len(prompts) <= 40
    assert f"{len(prompts)} prompts in {out}" in said
    assert len(set(prompts.values())) == len(prompts)
    assert [prompt.turns[0] for prompt in read_prompts("invented", out)] == list(prompts.values())
    assert all("w1." not in text.split() and len(text) >= 8 for text in prompts.values())


def test_a_run_goes_on_with_what_is_there(chatty: Path, tmp_path: Path) -> None:
    """To the same prompts, whoever was beside them; a file of somebody else's is left alone."""
    whole, cut = tmp_path / "whole.jsonl", tmp_path / "cut.jsonl"
    assert run(chatty, whole, "--workers", "1")[0] == 0
    cut.write_text("".join(whole.read_text().splitlines(keepends=True)[:5]))
    assert run(chatty, cut, "--slots", "3")[0] == 0
    assert told(cut) == told(whole)
    assert run(chatty, whole, "--seed", "1")[0] == 0
    others = tmp_path / "others.jsonl"
    others.write_text('{"prompt": "mine"}\n')
    code, said = run(chatty, others)
    assert (code, others.read_text()) == (1, '{"prompt": "mine"}\n')
    assert "is no prompt of" in said


def test_prompts_near_those_of_a_benchmark_are_left_out(chatty: Path, tmp_path: Path) -> None:
    free, kept, benchmark = (tmp_path / name for name in ("free.jsonl", "kept.jsonl", "benchmark.jsonl"))
    assert run(chatty, free)[0] == 0
    prompts = told(free)
    near = next(number for number, text in prompts.items() if len(text.split()) >= RUN)
    benchmark.write_text(json.dumps({"turns": ["First this.", f"Say, {prompts[near].upper()}?"]}) + "\n")
    code, said = run(chatty, kept, "--apart-from", str(benchmark))
    assert code == 0, said
    assert told(kept) == {number: text for number, text in prompts.items() if number != near}


def test_apart_are_texts_without_a_run_of_words_in_common() -> None:
    words = [f"word{number}" for number in range(12)]
    apart = Apart(["One.", " ".join(words)])
    assert " ".join(words[: RUN - 1]) in apart
    assert " ".join(words[2 : 2 + RUN]) not in apart
    assert "and, so: " + ", ".join(words[4:]).title() not in apart
    assert "one" not in apart, "short ones as a whole"
    assert "one more" in apart


@pytest.mark.parametrize(
    ("more", "reason"),
    [([], "no chat template"), (["--apart-from", "nowhere.jsonl"], "no prompt file nowhere.jsonl")],
)
def test_what_cannot_be_done_is_refused_by_name(folder: Path, tmp_path: Path, more: list[str], reason: str) -> None:
    code, said = run(folder / "target", tmp_path / "out.jsonl", *more)
    assert code == 1
    assert reason in said
    assert not (tmp_path / "out.jsonl").exists()


def test_a_line_that_was_cut_off_is_written_anew_and_strange_breaks_are_none(chatty: Path, tmp_path: Path) -> None:
    whole, cut = tmp_path / "whole.jsonl", tmp_path / "cut.jsonl"
    assert run(chatty, whole)[0] == 0
    first, *others = whole.read_text().splitlines(keepends=True)
    strange = json.dumps({"number": json.loads(first)["number"], "prompt": "a\u2028b\u0085c"}, ensure_ascii=False)
    cut.write_text(strange + "\n" + "".join(others)[:-7])
    assert run(chatty, cut)[0] == 0
    assert told_of(cut) == told_of(whole) | {json.loads(first)["number"]: "a\u2028b\u0085c"}


def told_of(out: Path) -> dict[int, str]:
    return {item["number"]: item["prompt"] for item in map(json.loads, out.read_text().rstrip("\n").split("\n"))}


def test_all_workers_have_work(chatty: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though all begin with the same words."""
    threads, flight = set[int](), generate.Flight

    def noted(*arguments: Any) -> Any:
        made = flight(*arguments)
        begin = made._begin
        monkeypatch.setattr(made, "_begin", lambda *given: (threads.add(threading.get_ident()), begin(*given)))
        return made

    monkeypatch.setattr(generate, "Flight", noted)
    assert list(texts(Teacher(chatty), range(60), 0, 12, 4, 2))
    assert len(threads) == 2
