"""What is honoured, what is refused by name, and what asks for nothing."""

from __future__ import annotations

import math
from typing import Any

import orjson
import pytest
from openai.types.chat.completion_create_params import CompletionCreateParamsBase
from openai.types.completion_create_params import CompletionCreateParamsBase as TextParams

from adasd.core.errors import InvalidRequest
from services.gateway.completions_schema import CompletionRequest, parse_completion_request
from services.gateway.fields import MAX_STOP_CHARACTERS
from services.gateway.neutral import COMPLETIONS_FIELDS, REQUEST_FIELDS
from services.gateway.schema import ChatRequest, parse_chat_request

MINIMAL: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


def called(name: str, arguments: object) -> dict[str, Any]:
    return {"id": "1", "type": "function", "function": {"name": name, "arguments": arguments}}


CALL = called("f", "{}")
TOOL: dict[str, Any] = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


def parse(**fields: Any) -> ChatRequest:
    return parse_chat_request(orjson.dumps({**MINIMAL, **fields}))


def refusal(**fields: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as raised:
        parse(**fields)
    return raised.value


def test_every_field_of_openai_is_known() -> None:
    documented = {*CompletionCreateParamsBase.__annotations__, "stream"}
    assert documented <= {*ChatRequest.model_fields, *REQUEST_FIELDS}
    assert not set(REQUEST_FIELDS) & set(ChatRequest.model_fields)


def test_all_neutral_values_at_once_ask_for_nothing() -> None:
    neutral = {name: values[0] for name, values in REQUEST_FIELDS.items() if values}
    assert parse(**neutral, min_p=0, top_k=-1, top_p=1, speculation=None) == parse(top_k=-1)


@pytest.mark.parametrize("name", [*REQUEST_FIELDS, *sorted(set(ChatRequest.model_fields) - {"model", "messages"})])
def test_null_asks_for_nothing(name: str) -> None:
    assert parse(**{name: None}) == parse()


@pytest.mark.parametrize(
    ("name", "value"),
    [(name, value) for name, values in REQUEST_FIELDS.items() for value in values]
    + [("n", 1), ("n", 1.0), ("logprobs", False), ("top_logprobs", 0), ("min_tokens", 0), ("ignore_eos", False)]
    + [("presence_penalty", 0), ("frequency_penalty", 0.0), ("repetition_penalty", 1.0), ("logit_bias", {})],
)
def test_neutral_values_pass(name: str, value: object) -> None:
    assert parse(**{name: value}) == parse()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[(name, {"unusual": "value"}) for name in REQUEST_FIELDS],
        ("store", True),
        ("tool_choice", "required"), ("tools", {}),
        ("modalities", ["text", "audio"]), ("service_tier", "flex"),
        ("echo", True), ("reasoning_effort", "high"), ("metadata", {"a": "b"}), ("nonsense", None),
    ],
)  # fmt: skip
def test_what_is_not_honoured_is_refused_by_name(name: str, value: object) -> None:
    error = refusal(**{name: value})
    assert error.param == name
    assert name in str(error)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -1), ("temperature", 2.1), ("temperature", 1e9), ("temperature", "0.5"), ("temperature", True),
        ("top_p", 0), ("top_p", 1.0001), ("top_p", -0.5), ("top_p", "1"),
        ("top_k", -2), ("top_k", 1.5), ("top_k", 2**31), ("top_k", True),
        ("min_p", -0.1), ("min_p", 1.1),
        ("max_tokens", 0), ("max_tokens", -1), ("max_tokens", 1.5), ("max_tokens", 1e12), ("max_tokens", "5"),
        ("max_completion_tokens", 0),
        ("seed", 1.5), ("seed", "1"), ("seed", True), ("seed", 2**63),
        ("stop", []), ("stop", ["a"] * 5), ("stop", ""), ("stop", ["a", ""]), ("stop", 5), ("stop", [5]),
        ("stop", "x" * (MAX_STOP_CHARACTERS + 1)),
        ("stream", "true"), ("stream", 1), ("user", 5),
        ("model", None), ("model", 5), ("messages", None), ("messages", []), ("messages", "hi"),
        ("speculation", "off"),
        ("n", 0), ("n", -1), ("n", 9), ("n", True), ("n", "1"), ("n", 1.5),
        ("frequency_penalty", 2.1), ("presence_penalty", -2.1), ("presence_penalty", False),
        ("repetition_penalty", 0), ("repetition_penalty", "1"), ("min_tokens", -1), ("min_tokens", True),
        ("logit_bias", []), ("logit_bias", {"a": 1}), ("logit_bias", {"01": 1}), ("logit_bias", {"-1": 1}),
        ("logit_bias", {"1": 101}), ("logit_bias", {"1": True}), ("logit_bias", {"1": None}),
        ("logit_bias", {str(token): 1 for token in range(1025)}),
        ("logprobs", 1), ("top_logprobs", 5), ("top_logprobs", -1), ("ignore_eos", 1),
    ],
)  # fmt: skip
def test_values_out_of_range_or_of_another_type_are_refused_by_name(name: str, value: object) -> None:
    assert refusal(**{name: value}).param == name


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ("hi", "messages[0]"),
        ({"content": "hi"}, "messages[0].role"),
        ({"role": "user"}, "messages[0].content"),
        ({"role": "user", "content": None}, "messages[0].content"),
        ({"role": "user", "content": []}, "messages[0].content"),
        ({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}, "messages[0].content"),
        ({"role": "user", "content": [{"type": "text", "text": 5}]}, "messages[0].content"),
        ({"role": "user", "content": [{"type": "text", "text": "a", "cache_control": {}}]}, "messages[0].content"),
        ({"role": "user", "content": 5}, "messages[0].content"),
        ({"role": "tool", "content": "x", "tool_call_id": "y"}, "messages[0].tool_call_id"),
        ({"role": "tool", "content": "x"}, "messages[0].tool_call_id"),
        ({"role": "tool", "tool_call_id": "y"}, "messages[0].content"),
        ({"role": "user", "content": "x", "tool_call_id": "y"}, "messages[0].tool_call_id"),
        ({"role": "robot", "content": "x"}, "messages[0].role"),
        ({"role": "assistant", "content": None, "tool_calls": []}, "messages[0].content"),
        ({"role": "assistant", "content": "", "tool_calls": [{"id": "1"}]}, "messages[0].tool_calls[0].function"),
        ({"role": "user", "content": "", "tool_calls": [CALL]}, "messages[0].tool_calls"),
        ({"role": "assistant", "tool_calls": [{**CALL, "id": ""}]}, "messages[0].tool_calls[0].id"),
        ({"role": "assistant", "tool_calls": [{**CALL, "type": "custom"}]}, "messages[0].tool_calls[0].type"),
        ({"role": "assistant", "tool_calls": [called("a b", "{}")]}, "messages[0].tool_calls[0].function.name"),
        *[
            ({"role": "assistant", "tool_calls": [called("f", text)]}, "messages[0].tool_calls[0].function.arguments")
            for text in ("{", "[]", "1", "{'a': 1}", '{"a": ' * 40 + "1" + "}" * 40, 5, {})
        ],
        ({"role": "user", "content": "x", "name": "bob"}, "messages[0].name"),
        ({"role": "user", "content": "x", "mood": "good"}, "messages[0].mood"),
    ],
)
def test_messages_that_cannot_be_honoured(message: object, param: str) -> None:
    assert refusal(messages=[message]).param == param


def function(**fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", **fields}}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "custom", "custom": {"name": "f"}}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [function(name="")]}, "tools[0].function.name"),
        ({"tools": [function(name="a b")]}, "tools[0].function.name"),
        ({"tools": [function(name="a" * 65)]}, "tools[0].function.name"),
        ({"tools": [TOOL, function()]}, "tools[1].function.name"),
        ({"tools": [function(description=1)]}, "tools[0].function.description"),
        ({"tools": [function(parameters=[])]}, "tools[0].function.parameters"),
        ({"tools": [function(parameters={"type": "array"})]}, "tools[0].function.parameters"),
        ({"tools": [function(unknown=1)]}, "tools[0].function.unknown"),
        ({"tools": [function(name=f"f{i}") for i in range(129)]}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": "sometimes", "tools": [TOOL]}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "g"}}, "tools": [TOOL]}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "f", "x": 1}}, "tools": [TOOL]}, "tool_choice"),
        ({"tools": [TOOL], "parallel_tool_calls": 1}, "parallel_tool_calls"),
    ],
)
def test_tools_that_cannot_be_honoured(fields: dict[str, Any], param: str) -> None:
    assert refusal(**fields).param == param


@pytest.mark.parametrize(
    "fields", [{"tools": []}, {"tools": [], "tool_choice": "none"}, {"tool_choice": "auto"}, {"tool_choice": None}]
)
def test_no_tools_ask_for_nothing(fields: dict[str, Any]) -> None:
    assert not parse(**fields).offered


def test_a_result_belongs_to_an_earlier_call() -> None:
    asked = {"role": "assistant", "content": None, "tool_calls": [CALL]}
    result = {"role": "tool", "tool_call_id": "1", "content": "42", "name": "f"}
    assert parse(messages=[asked, result]).messages[1].tool_call_id == "1"
    assert refusal(messages=[result, asked]).param == "messages[0].tool_call_id"


def test_what_an_sdk_sends_back_as_the_assistants_turn() -> None:
    echoed = {
        "role": "assistant",
        "content": "hi",
        "refusal": None,
        "annotations": [],
        "audio": None,
        "tool_calls": None,
    }
    assert parse(messages=[echoed]).messages[0].for_template() == {"role": "assistant", "content": "hi"}


def test_text_parts_are_lines_of_one_text() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert parse(messages=[{"role": "user", "content": parts}]).messages[0].content == "a\nb"


def test_developers_are_systems() -> None:
    assert parse(messages=[{"role": "developer", "content": "x"}]).messages[0].for_template()["role"] == "system"


def completion(**fields: Any) -> CompletionRequest:
    return parse_completion_request(orjson.dumps({"model": "m", "prompt": "hi", **fields}))


def test_every_field_of_openais_completions_is_known() -> None:
    documented = {*TextParams.__annotations__, "stream"}
    assert documented <= {*CompletionRequest.model_fields, *COMPLETIONS_FIELDS}
    assert not set(COMPLETIONS_FIELDS) & set(CompletionRequest.model_fields)
    neutral = {name: values[0] for name, values in COMPLETIONS_FIELDS.items() if values}
    assert completion(**neutral, logprobs=None, echo=False) == completion()


@pytest.mark.parametrize(
    ("prompt", "parsed"),
    [
        ("a", ("a",)), (["a", ""], ("a", "")), ([1, 2], ((1, 2),)), ([[1], [2, 3]], ((1,), (2, 3))),
    ],
)  # fmt: skip
def test_prompts_of_a_completion(prompt: object, parsed: tuple[object, ...]) -> None:
    assert completion(prompt=prompt).prompt == parsed


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        *[({"prompt": prompt}, "prompt") for prompt in (None, 5, [], [[]], ["a", 1], [1, "a"])],
        *[({"prompt": prompt}, "prompt") for prompt in ([1.5], [True], [-1], [2**32])],
        ({"prompt": ["a"] * 33}, "prompt"), ({"prompt": ["a"] * 5, "n": 7}, "n"), ({"logprobs": 6}, "logprobs"),
        ({"logprobs": True}, "logprobs"), ({"echo": True, "logprobs": 0}, "echo"), ({"suffix": "x"}, "suffix"),
        ({"best_of": 2}, "best_of"), ({"messages": []}, "messages"), ({"max_tokens": 0}, "max_tokens"),
        ({"min_tokens": 17}, "min_tokens"),
    ],
)  # fmt: skip
def test_completions_that_cannot_be_honoured(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        completion(**fields)
    assert raised.value.param == param


def test_biases_go_by_ascending_id() -> None:
    assert parse(logit_bias={"10": 1, "9": -2.5}).logit_bias == ((9, -2.5), (10, 1.0))


def test_fields_that_do_not_go_together() -> None:
    assert refusal(top_logprobs=2, logprobs=False).param == "top_logprobs"
    assert refusal(min_tokens=6, max_completion_tokens=5).param == "min_tokens"
    assert refusal(logprobs=True, resumable={"window_s": 1}).param == "resumable"
    options = {"continuous_usage_stats": True}
    assert refusal(stream=True, stream_options=options).param == "stream_options.continuous_usage_stats"


def test_one_limit_has_two_names() -> None:
    assert parse(max_tokens=5).asked_tokens == parse(max_completion_tokens=5).asked_tokens == 5
    assert parse(max_tokens=5, max_completion_tokens=5).asked_tokens == 5
    assert refusal(max_tokens=5, max_completion_tokens=6).param == "max_tokens"


def test_usage_in_a_stream_is_asked_for() -> None:
    assert parse(stream=True, stream_options={"include_usage": True}).include_usage
    assert not parse(stream=True, stream_options={"include_usage": False, "include_obfuscation": False}).include_usage
    assert not parse(stream=True).include_usage
    assert refusal(stream_options={"include_usage": True}).param == "stream_options"
    assert refusal(stream=True, stream_options={"include_usage": 1}).param == "stream_options.include_usage"
    assert (
        refusal(stream=True, stream_options={"include_obfuscation": True}).param == "stream_options.include_obfuscation"
    )


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_candidates": 0}, "speculation.max_candidates"),
        ({"max_candidates": 65}, "speculation.max_candidates"),
        ({"max_candidates": True}, "speculation.max_candidates"),
        ({"stopping": 1}, "speculation.stopping"),
        ({"threshold": 1}, "speculation.threshold"),
    ],
)
def test_speculation_is_checked_too(fields: dict[str, Any], param: str) -> None:
    assert refusal(speculation=fields).param == param


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b'"x"', b"null", b'{"model": NaN}', b"\xff", b'{"temperature": 1e999}', b'{"a":' * 3000],
)
def test_bodies_that_are_no_json_object(body: bytes) -> None:
    with pytest.raises(InvalidRequest) as raised:
        parse_chat_request(body)
    assert raised.value.param is None


def test_not_a_number_is_no_temperature() -> None:
    with pytest.raises(InvalidRequest):
        parse_chat_request(b'{"model": "m", "messages": [], "temperature": Infinity}')
    with pytest.raises(ValueError, match="finite"):
        ChatRequest.model_validate({**MINIMAL, "temperature": math.nan})
