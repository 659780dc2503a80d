from __future__ import annotations

import json
from pathlib import Path

import pytest

from adasd.core.errors import InvalidRequest
from adasd.distill.prompts import Prompt, distinct_prompts, is_held_out, parse_source, read_prompts, split_prompts


def _file(folder: Path, name: str, items: list[object]) -> Path:
    path = folder / name
    path.write_text("".join(json.dumps(item) + "\n" for item in items))
    return path


def test_every_known_form_becomes_a_conversation_that_ends_with_the_user(tmp_path: Path) -> None:
    items: list[object] = [
        "plain",
        {"prompt": "p"},
        {"prompt": {"text": "tree"}},
        {"question": "q", "answer": "a"},
        {"instruction": "do", "instances": [{"input": "this"}]},
        {"instruction": "do", "instances": [{"input": ""}]},
        {"messages": [{"role": "user", "content": "u"}, {"role": "assistant", "content": "a"}]},
        {"turns": ["one", "two", "three", "four"]},
        " ",
    ]
    prompts = list(read_prompts("set", _file(tmp_path, "x.jsonl", items)))
    assert [prompt.turns for prompt in prompts[:7]] == [
        ("plain",), ("p",), ("tree",), ("q",), ("do\n\nthis",), ("do",), ("u",)
    ]  # fmt: skip
    assert prompts[7].turns in (("one",), ("one", "two", "three"))
    assert len(prompts) == 8
    assert all(prompt.messages[-1]["role"] == "user" for prompt in prompts)


def test_a_line_without_a_prompt_is_refused_with_its_place(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"x\.jsonl:2 holds no prompt"):
        list(read_prompts("set", _file(tmp_path, "x.jsonl", ["fine", {"text": "?"}])))


@pytest.mark.parametrize("name", ["test.jsonl", "heldout.jsonl", "gsm8k_test.jsonl"])
def test_evaluation_splits_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidRequest, match="evaluation split"):
        parse_source(str(_file(tmp_path, name, ["x"])))


def test_a_source_is_named_by_hand_or_after_its_folder(tmp_path: Path) -> None:
    path = _file(tmp_path, "train.jsonl", ["x"])
    assert parse_source(f"mine={path}") == ("mine", path)
    assert parse_source(str(path)) == (tmp_path.name, path)


def _prompts(source: str, count: int) -> list[Prompt]:
    return [Prompt(source, f"{source}/{index}", (f"{source} asks {index}",)) for index in range(count)]


def test_held_out_prompts_are_never_trained_on_whatever_seed_and_company() -> None:
    alone = split_prompts(_prompts("a", 400), 1, 0.1, 1000)
    more = split_prompts([*_prompts("b", 50), *_prompts("a", 400), *_prompts("a", 400)], 2, 0.1, 1000)
    assert 20 < len(alone.held_out) < 60
    assert not {prompt.turns for prompt in more.training} & {prompt.turns for prompt in alone.held_out}
    assert {prompt for prompt in more.held_out if prompt.source == "a"} == set(alone.held_out)
    assert len(alone.training) + len(alone.held_out) == 400


def test_past_the_limit_held_out_prompts_are_left_out() -> None:
    split = split_prompts(_prompts("a", 400), 1, 0.5, 7)
    assert len(split.held_out) == 7
    assert not any(is_held_out(prompt, 0.5) for prompt in split.training)


def test_sources_take_turns() -> None:
    split = split_prompts([*_prompts("a", 100), *_prompts("b", 100)], 1, 0.0, 0)
    assert [prompt.source for prompt in split.training[:6]] == ["a", "b", "a", "b", "a", "b"]


def test_a_line_that_is_not_json_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('"a prompt"\n{broken\n')
    with pytest.raises(InvalidRequest, match=r"x\.jsonl:2 is not JSON"):
        list(read_prompts("set", path))


def test_distinct_prompts_are_the_first_ones_or_those_a_seed_draws(tmp_path: Path) -> None:
    path = _file(tmp_path, "test.jsonl", ["a", "b", "a", *(f"number {index}" for index in range(30))])
    assert [prompt.turns for prompt in distinct_prompts(path, 3)] == [("a",), ("b",), ("number 0",)]
    drawn = distinct_prompts(path, 10, seed=1)
    assert drawn == distinct_prompts(path, 10, seed=1) != distinct_prompts(path, 10, seed=2)
    assert len({prompt.turns for prompt in drawn}) == 10
    with pytest.raises(InvalidRequest, match="holds 32 distinct prompts, 33"):
        distinct_prompts(path, 33)
    with pytest.raises(InvalidRequest, match="no such file"):
        distinct_prompts(tmp_path / "absent.jsonl", 1)


def test_a_json_file_holds_one_list_and_blank_lines_are_nothing(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text('["a", {"question": "b"}]')
    (tmp_path / "y.json").write_text('{"examples": ["a"]}')
    (tmp_path / "z.jsonl").write_text('"a"\n\n"b"\n')
    for name in ("x.json", "z.jsonl"):
        assert [prompt.turns for prompt in distinct_prompts(tmp_path / name, 2)] == [("a",), ("b",)]
    with pytest.raises(InvalidRequest, match=r"y\.json holds no list"):
        distinct_prompts(tmp_path / "y.json", 1)


def test_turns_that_are_no_texts_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="holds no prompt"):
        distinct_prompts(_file(tmp_path, "x.jsonl", [{"turns": [["user", "hello"]]}]), 1)
