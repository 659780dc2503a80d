"""Calls that must be: required, of one function, or with strict arguments, whatever the model would rather write."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from adasd.runtime.toy import ToySpec
from services.gateway.text import ChatText
from tests.services.gateway.conftest import Gateway, gateway_of
from tests.services.gateway.recital import SPEC, Babbling, performing, reciting, spelled, write_recital
from tests.services.gateway.test_tools import calls_of, gathered, reason_of, streamed
from tests.services.gateway.tool_templates import FAMILIES

UNIT = {
    "type": "object",
    "properties": {"unit": {"enum": ["C", "F"]}, "dry": {"type": "boolean"}},
    "required": ["unit", "dry"],
    "additionalProperties": False,
}
LEFT_OUT = {"type": "function", "function": {"name": "time", "strict": None}}


def tools(strict: bool | None = None) -> list[dict[str, Any]]:
    function = {"name": "weather", "parameters": UNIT, **({} if strict is None else {"strict": strict})}
    return [{"type": "function", "function": function}, LEFT_OUT]


def named(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


@asynccontextmanager
async def playing(redis_url: str, folder: Path, family: str, said: str | None = None) -> AsyncIterator[Gateway]:
    """A gateway whose model writes anything, or what it is told to."""
    _, template, specials = FAMILIES[family]
    text = ChatText.load(write_recital(folder, template, specials))
    async with gateway_of(redis_url, text, spec=SPEC) as gateway:
        for name, seed in (("target_replica", 1), ("draft_replica", 2)):
            babbling = performing(Babbling(ToySpec.parse(f"{SPEC},seed={seed}")), specials)
            model = babbling if said is None else reciting(spelled(said, specials), specials)
            setattr(gateway.peers, name, model)
        yield gateway


def valid(call: tuple[str, str]) -> bool:
    name, arguments = call
    given = json.loads(arguments)
    return given == {} if name == "time" else given["unit"] in UNIT["properties"]["unit"]["enum"]  # type: ignore[index]


@pytest.mark.parametrize("family", ["toy", "mistral", "llama"])
async def test_a_model_that_writes_anything_calls_what_it_must(redis_url: str, tmp_path: Path, family: str) -> None:
    async with playing(redis_url, tmp_path, family) as gateway:
        for seed, choice in enumerate(("required", named("weather"), named("time"), "required")):
            asked = {"tools": tools(), "tool_choice": choice, "seed": seed, "max_tokens": 300}
            asked |= {"speculation": {"stopping": "fixed", "max_candidates": 1 + 4 * seed, "acceptance": "coupled"}}
            asked |= {"parallel_tool_calls": isinstance(choice, dict)}
            (answer,) = (await gateway.post(**asked)).json()["choices"]
            assert (answer["finish_reason"], answer["message"]["content"]) == ("tool_calls", None)
            (call,) = calls_of(answer["message"])
            assert valid(call)
            assert choice == "required" or call[0] == choice["function"]["name"]  # type: ignore[index]
            chunks, _ = await streamed(gateway, **asked)
            assert (calls_of(gathered(chunks)), reason_of(chunks)) == ([call], "tool_calls")


@pytest.mark.parametrize(
    ("family", "before", "after"),
    [
        ("toy", "Let me see. <tool_call>", "</tool_call> Well."),
        ("mistral", "So.[TOOL_CALLS] [", "]"),
        ("llama", "", ""),
    ],
)
async def test_arguments_of_strict_functions_follow_their_schema(
    redis_url: str, tmp_path: Path, family: str, before: str, after: str
) -> None:
    key = "parameters" if family == "llama" else "arguments"
    said = f'{before}{{"name": "weather", "{key}": {{"unit": "K", "dry": true}}}}{after}'
    async with playing(redis_url, tmp_path, family, said) as gateway:
        asked = {"temperature": 0, "max_tokens": 300, "speculation": {"acceptance": "exact", "stopping": "fixed"}}
        (loose,) = (await gateway.post(**asked, tools=tools())).json()["choices"]
        (strict,) = (await gateway.post(**asked, tools=tools(strict=True))).json()["choices"]
        assert calls_of(loose["message"]) == [("weather", '{"unit": "K", "dry": true}')]
        assert calls_of(strict["message"]) == [("weather", '{"unit": "C", "dry": true}')]
        assert strict["message"]["content"] == loose["message"]["content"]
        assert strict["finish_reason"] == "tool_calls"


async def test_text_is_as_free_as_without_strict_functions(redis_url: str, tmp_path: Path) -> None:
    said = "No <tools> are {needed} here."
    for family in ("toy", "mistral", "llama"):
        async with playing(redis_url, tmp_path / family, family, said) as gateway:
            (answer,) = (await gateway.post(temperature=0, tools=tools(strict=True))).json()["choices"]
            assert (answer["message"]["content"], answer["finish_reason"]) == (said, "stop")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tool_choice": "required", "min_tokens": 3}, "min_tokens"),
        ({"tool_choice": named("time"), "ignore_eos": True}, "ignore_eos"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"structured_outputs": {"regex": "a"}}, "structured_outputs"),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "strict": True, "parameters": {"not": {}}}}]},
            "tools[0].function.parameters",
        ),
    ],
)
async def test_what_cannot_be_promised_is_refused(
    redis_url: str, tmp_path: Path, fields: dict[str, Any], param: str
) -> None:
    async with playing(redis_url, tmp_path, "toy") as gateway:
        reply = await gateway.post(**{"tools": tools(), **fields})
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)
