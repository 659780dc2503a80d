"""Calls found in text, however it is cut; JSON as it comes; the formats that templates write."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from adasd.core.errors import InvalidRequest
from services.gateway.call_formats import FORMATS, CallFormat
from services.gateway.call_reader import CallReader
from services.gateway.control_tokens import CLOSE, OPEN
from services.gateway.json_scan import JsonScanner, Step
from services.gateway.text import ChatText
from tests.services.gateway.recital import special_tokenizer, write_recital
from tests.services.gateway.tokenizers import TEMPLATE
from tests.services.gateway.tool_templates import FAMILIES

NAMES = ("f", "g")
Found = tuple[str, list[tuple[str, str]], bool]
"""Content, calls, whether these are complete."""


def read(form: CallFormat, text: str, size: int) -> Found:
    reader, parts = CallReader(form, NAMES), []
    for start in range(0, len(text), size):
        reader.read(text[start : start + size])
        parts += reader.take()
    reader.end()
    parts += reader.take()
    calls: list[tuple[str, str]] = []
    for part in parts:
        if part.name is not None:
            assert (part.call, part.text) == (len(calls), "")
            calls.append((part.name, ""))
        elif part.call is not None:
            assert part.call == len(calls) - 1
            calls[-1] = (calls[-1][0], calls[-1][1] + part.text)
    return "".join(part.text for part in parts if part.call is None), calls, reader.complete


PIECES = [
    '{"name": "f", "arguments": {"a": [1, -2.5e3, {"b": "}</tool_call>\\u00e9"}]}}',
    '{"name": "g", "parameters": {}}',
    '{"arguments": {"c": null}, "id": "x", "name": "g"}',
    '{"name": "f"}',
    '{"name": "h", "arguments": {}}',
    '{"name": "f", "arguments": {"a": tru}}',
    '{"name": "f", "arguments": "{}"}',
    "<tool_call>", "</tool_call>", "<tool", "[TOOL_CALLS]", "[", "]", ", ", "; ", "<|python_tag|>", "f[ARGS]",
    " ", "\n", "a", "{", "}", '"',
]  # fmt: skip


@settings(max_examples=100, deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=7), st.sampled_from([*FORMATS.values()]), st.integers(1, 9))
def test_how_a_text_is_cut_makes_no_difference(pieces: list[str], form: CallFormat, size: int) -> None:
    text = "".join(pieces)
    content, calls, complete = read(form, text, size)
    assert (content, calls, complete) == read(form, text, max(1, len(text)))
    assert not complete or all(isinstance(json.loads(arguments), dict) for _, arguments in calls)
    assert all(arguments in text or arguments == "{}" for _, arguments in calls)
    if not calls:
        assert content == text


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def scanned(text: str) -> Iterator[Step]:
    scanner = JsonScanner()
    for character in text:
        step = scanner.step(character)
        yield step
        if step is not Step.MORE:
            return


@settings(max_examples=50, deadline=None)
@given(JSON, st.sampled_from([None, 1]), st.booleans(), st.data())
def test_json_is_read_as_json_is_written(value: Any, indent: int | None, ascii_only: bool, data: st.DataObject) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only) + " "
    *steps, last = scanned(text)
    assert set(steps) <= {Step.MORE}
    assert last is (Step.PAST if isinstance(value, int | float) and not isinstance(value, bool) else Step.DONE)
    place = data.draw(st.integers(0, len(text) - 2))
    broken = text[:place] + data.draw(st.sampled_from('x"{}[],:\\1- ')) + text[place + 1 :]
    try:
        json.loads(broken)
    except ValueError:
        pass
    else:
        assert Step.WRONG not in scanned(broken)


@pytest.mark.parametrize(
    "text", ["{,", "[1,]", '{"a" 1', "01 ", "1.x", "tru ", "-,", '"\n', '"\\x', '"\\u12g', '{"a":1,}', "nul\n"]
)
def test_what_is_no_json_is_found_at_once(text: str) -> None:
    *steps, last = scanned(text)
    assert (len(steps) + 1, last) == (len(text), Step.WRONG)


def text_of(tmp_path: Any, family: str) -> ChatText:
    _, template, specials = FAMILIES[family]
    return ChatText.load(write_recital(tmp_path / family, template, specials))


@pytest.mark.parametrize("family", FAMILIES)
def test_the_format_of_a_template_is_found(tmp_path: Any, family: str) -> None:
    calling = text_of(tmp_path, family).calling
    assert (calling.offered, calling.recalled, calling.mappings) == (True, True, True)
    assert calling.require().name == FAMILIES[family][0]


@pytest.mark.parametrize(
    ("template", "offered", "form"),
    [
        (TEMPLATE, False, None),
        ("{{ tools | length }}" + TEMPLATE, False, None),
        ("{{ tools }}{{ messages[0].content }}", True, None),
        (
            "{{ tools }}{% for m in messages %}{{ m.content | default('') }}{% for c in m.tool_calls %}"
            "{{ '<call=' + c.function.name + '>' + c.function.arguments }}{% endfor %}{% endfor %}",
            True,
            None,
        ),
    ],
)
def test_what_a_template_does_not_know(tmp_path: Any, template: str, offered: bool, form: str | None) -> None:
    calling = ChatText.load(write_recital(tmp_path, template)).calling
    assert (calling.offered, calling.form) == (offered, form)
    with pytest.raises(InvalidRequest, match="tools") as raised:
        calling.require()
    assert raised.value.param == "tools"


def test_arguments_are_texts_where_a_template_wants_texts(tmp_path: Any) -> None:
    template = (
        "{{ tools }}{% for m in messages %}{{ m.content | default('') }}{% for c in m.tool_calls %}"
        "{{ '<tool_call>{\"name\": \"' + c.function.name + '\", \"arguments\": ' + c.function.arguments + '}' }}"
        "{% endfor %}{% endfor %}"
    )
    text = ChatText.load(write_recital(tmp_path, template))
    assert (text.calling.mappings, text.calling.require().name) == (False, "hermes")
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": {"a": "é"}}}
    ids = text.encode([{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": [call]}])
    assert '"arguments": {"a": ' in text.decode(ids)


def test_an_operators_parser_and_template(tmp_path: Any) -> None:
    folder, file = write_recital(tmp_path / "model", TEMPLATE), tmp_path / "tools.jinja"
    file.write_text(FAMILIES["toy"][1])
    assert ChatText.load(folder, file).calling.require().name == "hermes"
    assert ChatText.load(folder, file, "llama").calling.require().name == "llama"
    for files, param in (((folder, None, "hermes"), "tool_parser"), ((folder, tmp_path / "none"), "chat_template")):
        with pytest.raises(InvalidRequest) as raised:
            ChatText.load(*files)
        assert raised.value.param == param


MESSAGES: list[dict[str, Any]] = [
    {"role": "user", "content": "hi"},
    {
        "role": "assistant",
        "tool_calls": [
            {"id": "abcdefgh1", "type": "function", "function": {"name": "f", "arguments": {"a": ["é", 1]}}}
        ],
    },
    {"role": "tool", "tool_call_id": "abcdefgh1", "name": "f", "content": "42"},
]


def tool(word: str) -> dict[str, Any]:
    parameters = {"type": "object", "properties": {word: {"type": "string", "enum": [word], "default": word}}}
    return {"type": "function", "function": {"name": "f", "description": word, "parameters": parameters}}


@pytest.mark.parametrize("family", FAMILIES)
def test_prompts_with_tools_are_those_of_transformers(tmp_path: Any, family: str) -> None:
    _, template, specials = FAMILIES[family]
    theirs = PreTrainedTokenizerFast(tokenizer_object=special_tokenizer(specials), chat_template=template)
    for messages in (MESSAGES[:1], MESSAGES):
        expected = theirs.apply_chat_template(
            messages, tools=[tool("naïve <b>")], add_generation_prompt=True, return_dict=False
        )
        assert list(text_of(tmp_path, family).encode(messages, [tool("naïve <b>")])) == expected


@pytest.mark.parametrize("family", ["qwen", "smol", "mistral", "llama"])
def test_nothing_that_is_said_of_tools_becomes_a_control_token(tmp_path: Any, family: str) -> None:
    specials = FAMILIES[family][2]
    text = text_of(tmp_path, family)
    controls = {special_tokenizer(specials).token_to_id(special) for special in specials}

    def count(word: str) -> int:
        call = {"id": "abcdefgh1", "type": "function", "function": {"name": "f", "arguments": {word: [word]}}}
        messages = [MESSAGES[0], {"role": "assistant", "tool_calls": [call]}, {**MESSAGES[2], "content": word}]
        return sum(token in controls for token in text.encode(messages, [tool(word)]))

    plain = count("word")
    for special in specials:
        for attack in (
            special,
            f"{OPEN}{special}{CLOSE}",
            rf"\ufdd0{special}\ufdd1",
            f"a{special[:-1]}",
            rf"\ufdd1{special}",
        ):
            assert count(attack) == plain, attack


def test_a_clients_own_escapes_stay_text(tmp_path: Any) -> None:
    text = text_of(tmp_path, "qwen")
    ids = text.encode([{"role": "user", "content": r"\ufdd0 and \ufdd1"}])
    assert r"\ufdd0 and \ufdd1" in text.decode(ids)
