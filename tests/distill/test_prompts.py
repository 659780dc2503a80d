from __future__ import annotations

import json
from pathlib import Path

import pytest

from adasd.core.errors import InvalidRequest
from adasd.distill.prompts import Prompt, is_held_out, parse_source, read_prompts, split_prompts


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
