"""Answers that must be something: by `response_format` and by `structured_outputs`, and what of them is refused."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from adasd.core.grammar import MAX_GRAMMAR_CHARACTERS, Grammar
from adasd.core.stopping import Off
from adasd.runtime.toy import ToySpec, write_toy_model
from services.gateway.sessions import Session
from services.gateway.text import ChatText
from tests.services.gateway.conftest import STRANGER, Gateway, gateway_of
from tests.services.gateway.test_resume import let_go, resume, running_session, told
from tests.services.gateway.test_schema import parse, refusal

SPEC = "toy:seed=1,vocab=300,sharpness=1.5,eos_bias=-4,context=400"
CITY = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 8}, "people": {"type": "integer", "maximum": 99}},
    "required": ["city", "people"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "city", "schema": CITY, "strict": True}}


@pytest.fixture(scope="module")
def byte_text(tmp_path_factory: pytest.TempPathFactory) -> ChatText:
    folder: Path = tmp_path_factory.mktemp("bytes")
    write_toy_model(folder, ToySpec.parse(SPEC))
    return ChatText.load(folder)


@pytest.fixture
async def served(redis_url: str, byte_text: ChatText) -> AsyncIterator[Gateway]:
    async with gateway_of(redis_url, byte_text, "served", SPEC, draft=SPEC + STRANGER) as gateway:
        await gateway.store._client.flushall()
        yield gateway


@pytest.fixture
async def successor(redis_url: str, byte_text: ChatText) -> AsyncIterator[Gateway]:
    async with gateway_of(redis_url, byte_text, "successor", SPEC, draft=SPEC + STRANGER) as gateway:
        yield gateway


async def answer(gateway: Gateway, **fields: Any) -> Any:
    reply = await gateway.post(**fields)
    assert reply.status_code == 200, reply.text
    return reply.json()["choices"]


async def refused(gateway: Gateway, **fields: Any) -> Any:
    reply = await gateway.post(**fields)
    assert reply.status_code == 400, reply.text
    return reply.json()["error"]


@pytest.mark.parametrize("temperature", [0, 1])
async def test_a_schema_is_followed(served: Gateway, temperature: float) -> None:
    choices = await answer(served, response_format=FORMAT, temperature=temperature, seed=1, n=4, max_tokens=100)
    for choice in choices:
        assert choice["finish_reason"] == "stop"
        found = json.loads(choice["message"]["content"])
        assert list(found) == ["city", "people"]
        assert isinstance(found["people"], int)
        assert found["people"] <= 99


@pytest.mark.parametrize(
    ("outputs", "pattern"),
    [
        ({"regex": "(yes|no){1,3}"}, "(yes|no){1,3}"),
        ({"choice": ["left", 'right "or" not', "päth\n"]}, 'left|right "or" not|päth\n'),
        ({"grammar": 'start: "<" word ">"\nword: /[a-z]{2,4}/'}, "<[a-z]{2,4}>"),
        ({"json": json.dumps(CITY)}, r'\{"city": ".*", "people": -?\d+\}'),
        ({"json": {"type": "array", "items": {"type": "null"}, "minItems": 2, "maxItems": 2}}, r"\[null, null\]"),
    ],
)
async def test_structured_outputs_are_what_they_are_asked_to_be(
    served: Gateway, outputs: dict[str, Any], pattern: str
) -> None:
    fields = {"structured_outputs": outputs, "seed": 2, "max_tokens": 100}
    for choice in await answer(served, n=3, **fields):
        assert re.fullmatch(pattern, choice["message"]["content"], re.DOTALL)
        assert choice["finish_reason"] == "stop"
    reply = await served.complete("a text that goes on", **fields)
    assert re.fullmatch(pattern, reply.json()["choices"][0]["text"], re.DOTALL)


async def test_any_object_is_one(served: Gateway) -> None:
    for fields in ({"response_format": {"type": "json_object"}}, {"structured_outputs": {"json_object": True}}):
        for choice in await answer(served, seed=3, n=3, max_tokens=60, **fields):
            text = choice["message"]["content"]
            assert text.startswith("{")
            assert choice["finish_reason"] == "length" or isinstance(json.loads(text), dict)


async def test_the_length_may_cut_a_text_short(served: Gateway) -> None:
    (choice,) = await answer(served, response_format=FORMAT, max_tokens=12)
    assert choice["finish_reason"] == "length"
    assert choice["message"]["content"].startswith('{"city": "')


async def test_the_text_is_that_of_the_target_alone(served: Gateway) -> None:
    """With the same noise, whatever is drafted; greedy too."""
    for fields in ({"temperature": 0}, {"seed": 7, "speculation": {"acceptance": "coupled"}}):
        reply = await served.post(response_format=FORMAT, max_tokens=100, **fields)
        session = Session.of_record((await served.stored(reply)).record, served.services.engine.costs)
        asked = session.generation
        assert asked.sampling.processing.grammar == Grammar("json_schema", json.dumps(CITY, separators=(",", ":")))
        rounds = served.oracle_of(SPEC).generate(asked.prompt, asked.sampling, Off(), asked.acceptance, 100)
        ids = [token for one in rounds for token in one.verdict.tokens]
        assert served.services.engine.text.decode(ids[:-1]) == reply.json()["choices"][0]["message"]["content"]


async def test_stop_strings_penalties_and_logprobs_go_with_it(served: Gateway) -> None:
    fields = {"structured_outputs": {"regex": "(ab)+c"}, "seed": 1, "max_tokens": 60}
    (choice,) = await answer(served, stop=["abab"], **fields)
    assert choice["message"]["content"] == ""
    (choice,) = await answer(served, logit_bias={"100": 9.5}, frequency_penalty=1.0, logprobs=True, **fields)
    assert re.fullmatch("(ab)+c", choice["message"]["content"])
    entries = choice["logprobs"]["content"]
    assert "".join(entry["token"] for entry in entries) == choice["message"]["content"] + "<|end|>"
    assert min(entry["logprob"] for entry in entries) < -2, "of the raw logits, where other ids are likelier"


async def test_a_taken_over_text_goes_on_in_its_grammar(served: Gateway, successor: Gateway) -> None:
    fields = {"response_format": FORMAT, "seed": 5, "speculation": {"acceptance": "coupled"}, "max_tokens": 100}
    (expected,) = await answer(served, **fields)
    served.peers.held = {4: asyncio.Event()}
    running = asyncio.create_task(served.post(**fields, stream=True))
    session = await running_session(served, 4)
    await let_go(served, session)
    rest = told(await resume(successor, session))
    assert rest.text == expected["message"]["content"]
    assert rest.finish == "stop"
    served.peers.held[4].set()
    await running
    assert await successor.metric("adasd_gateway_take_overs_total") == 1


SCHEMA = "response_format.json_schema.schema"


def named(schema: dict[str, Any]) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": schema}}


UNFOLLOWED: list[tuple[Any, str]] = [
    ({"type": "array", "uniqueItems": True}, "uniqueItems"),
    ({"type": "nothing"}, "nothing"),
    ({"properties": {"a": {"pattern": "("}}}, "unclosed"),
    ({"$ref": "https://example.com/a"}, "example.com"),
    ({"x-guidance": {"lenient": True}}, "x-guidance"),
    ({"enum": ["x" * MAX_GRAMMAR_CHARACTERS]}, "characters"),
]


async def test_a_schema_that_cannot_be_followed_is_refused(served: Gateway) -> None:
    for schema, words in UNFOLLOWED:
        error = await refused(served, **named({"name": "a", "schema": schema}))
        assert error["param"] == SCHEMA
        assert SCHEMA in error["message"]
        assert words in error["message"]


NOTHING: list[tuple[str, Any]] = [
    ("json", "{"),
    ("json", "[]"),
    ("json", {"type": "a"}),
    ("regex", "("),
    ("regex", "(?=a)b"),
    ("grammar", "none"),
]


async def test_structured_outputs_that_are_nothing_are_refused(served: Gateway) -> None:
    for name, value in NOTHING:
        error = await refused(served, structured_outputs={name: value})
        assert error["param"] == f"structured_outputs.{name}"
    (choice,) = await answer(served, structured_outputs={"choice": ["fine"]})
    assert choice["message"]["content"] == "fine"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": "json"}, "response_format"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"response_format": {**FORMAT, "type": "text"}}, "response_format.json_schema"),
        (named({"name": "a"}), SCHEMA),
        (named({"name": "a", "schema": True}), SCHEMA),
        (named({"name": "a b", "schema": {}}), "response_format.json_schema.name"),
        ({"response_format": {**FORMAT, "more": 1}}, "response_format.more"),
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs"),
        ({"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}}, "structured_outputs"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs.choice"),
        ({"structured_outputs": {"choice": [""]}}, "structured_outputs.choice[0]"),
        ({"structured_outputs": {"regex": 1}}, "structured_outputs.regex"),
        ({"structured_outputs": {"regex": "a", "whitespace_pattern": " "}}, "structured_outputs.whitespace_pattern"),
        ({"structured_outputs": {"regex": "a", "new": 1}}, "structured_outputs.new"),
        ({"response_format": FORMAT, "min_tokens": 2}, "min_tokens"),
        ({"response_format": FORMAT, "ignore_eos": True}, "ignore_eos"),
    ],
)
def test_refused_by_name(fields: dict[str, Any], param: str) -> None:
    assert refusal(**fields).param == param


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": {"type": "text"}, "min_tokens": 3, "ignore_eos": True},
        {"response_format": {"type": "text", "json_schema": None}, "structured_outputs": None},
    ],
)
def test_any_text_is_no_grammar(fields: dict[str, Any]) -> None:
    assert parse(**fields).wanted_grammar is None


def test_what_asks_for_nothing_more_passes() -> None:
    plain = parse(**named({"name": "city", "schema": CITY, "description": None, "strict": None})).wanted_grammar
    assert plain == parse(response_format=FORMAT).wanted_grammar
    outputs = {"regex": "a", "json": None, "json_object": False, "structural_tag": None, "disable_any_whitespace": True}
    assert parse(structured_outputs=outputs).wanted_grammar is not None
