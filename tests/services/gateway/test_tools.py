"""Calls of tools over HTTP: whatever a block holds, streamed or not, told at once or taken up again."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from services.gateway.text import ChatText
from tests.services.gateway.conftest import Gateway, events, gateway_of, named_events
from tests.services.gateway.recital import SPEC, reciting, spelled, write_recital
from tests.services.gateway.test_resume import let_go, resume, running_session
from tests.services.gateway.tokenizers import TEMPLATE
from tests.services.gateway.tool_templates import FAMILIES

SIZES = [3, 7, 20]
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}}


def tool(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "description": "It does.", "parameters": PARAMETERS}}


TOOLS = [tool("weather"), tool("time")]
PARIS, TIME = '{"a": "Paris 😀", "b": ["}</"]}', "{}"
CALL = f'{{"name": "weather", "arguments": {PARIS}}}'
OTHER = '{"arguments": {}, "name": "time"}'
BOTH = [("weather", PARIS), ("time", TIME)]
NONE: list[tuple[str, str]] = []

SAID: dict[str, tuple[str, str, str | None, list[tuple[str, str]], str]] = {
    "text": ("toy", "Hello <tool_ca {} there", "Hello <tool_ca {} there", NONE, "stop"),
    "blank": ("toy", " \n", " \n", NONE, "stop"),
    "call": ("toy", f"<tool_call>{CALL}</tool_call>", None, BOTH[:1], "tool_calls"),
    "two": (
        "qwen",
        f"Let me see.\n<tool_call>\n{CALL}\n</tool_call>\n<tool_call>\n{OTHER}\n</tool_call>\n",
        "Let me see.\n",
        BOTH,
        "tool_calls",
    ),
    "after": ("toy", f"<tool_call>{CALL}</tool_call> and", " and", BOTH[:1], "tool_calls"),
    "array": ("smol", f"<tool_call>[{CALL}, {OTHER}]</tool_call>", None, BOTH, "tool_calls"),
    "unknown": ("toy", '<tool_call>{"name": "x"}</tool_call>', '<tool_call>{"name": "x"}</tool_call>', NONE, "stop"),
    "again": ("toy", f"<tool_call><tool_call>{CALL}</tool_call>", "<tool_call>", BOTH[:1], "tool_calls"),
    "broken": (
        "toy",
        '<tool_call>{"name": "time", "arguments": {"a": 1,,}}</tool_call>',
        ",}}</tool_call>",
        [("time", '{"a": 1,')],
        "stop",
    ),
    "ended": ("toy", '<tool_call>{"name": "time", "arguments": {"a"', None, [("time", '{"a"')], "stop"),
    "header": ("toy", '<tool_call>{"name": "ti', '<tool_call>{"name": "ti', NONE, "stop"),
    "mistral": ("mistral", f"[TOOL_CALLS] [{CALL}, {OTHER}]", None, BOTH, "tool_calls"),
    "named": ("mistral", f"[TOOL_CALLS]weather[ARGS]{PARIS}[TOOL_CALLS]time{{}}", None, BOTH, "tool_calls"),
    "llama": ("llama", f"{CALL.replace('arguments', 'parameters')}; {OTHER}", None, BOTH, "tool_calls"),
    "tagged": ("llama", f"<|python_tag|>{CALL}", None, BOTH[:1], "tool_calls"),
    "object": ("llama", '{"name": "Bob", "age": 3}', '{"name": "Bob", "age": 3}', NONE, "stop"),
}
"""What is told of what the model writes: content, calls, finish reason."""


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ChatText]:
    return {
        family: ChatText.load(write_recital(tmp_path_factory.mktemp(family), template, specials))
        for family, (_, template, specials) in FAMILIES.items()
    }


class Stage:
    """Gateways over one Redis whose model writes what it is told to."""

    def __init__(self, redis_url: str, text: ChatText, specials: tuple[str, ...]) -> None:
        self._redis_url, self._text, self._specials = redis_url, text, specials

    async def answers(self, said: str, owner: str = "test") -> AsyncIterator[Gateway]:
        async with gateway_of(self._redis_url, self._text, owner, SPEC) as gateway:
            gateway.peers.target_replica = reciting(spelled(said, self._specials))
            gateway.peers.draft_replica = reciting(spelled(said, self._specials))
            yield gateway


@pytest.fixture
async def told(request: pytest.FixtureRequest, redis_url: str, texts: dict[str, ChatText]) -> AsyncIterator[Gateway]:
    """A gateway whose model writes one of `SAID`."""
    family, said, *_ = SAID[request.param]
    async for gateway in Stage(redis_url, texts[family], FAMILIES[family][2]).answers(said):
        yield gateway


@pytest.fixture
async def both(redis_url: str, texts: dict[str, ChatText]) -> AsyncIterator[tuple[Gateway, Gateway]]:
    """Two gateways, whose models write two calls."""
    family, said, *_ = SAID["two"]
    stage = Stage(redis_url, texts[family], FAMILIES[family][2])
    async for one in stage.answers(said):
        async for other in stage.answers(said, "other"):
            yield one, other


def fields(size: int = 4, **others: Any) -> dict[str, Any]:
    rules = {"stopping": "fixed", "acceptance": "exact", "max_candidates": size}
    return {"tools": TOOLS, "temperature": 0, "speculation": rules, **others}


def calls_of(message: dict[str, Any]) -> list[tuple[str, str]]:
    calls = message.get("tool_calls", [])
    assert len({call["id"] for call in calls}) == len(calls)
    return [(call["function"]["name"], call["function"]["arguments"]) for call in calls]


def gathered(chunks: list[Any], index: int = 0) -> dict[str, Any]:
    """The message that the deltas of one choice add up to; the shape of each is checked."""
    content: str | None = None
    calls: list[dict[str, Any]] = []
    for chunk in chunks:
        for choice in chunk["choices"]:
            if choice["index"] != index:
                continue
            delta = choice["delta"]
            if delta.get("content") is not None:
                content = (content or "") + delta["content"]
            for call in delta.get("tool_calls", []):
                if call["index"] == len(calls):
                    assert call.keys() == {"index", "id", "type", "function"}
                    assert call["function"]["arguments"] == ""
                    calls.append({**call, "function": {**call["function"]}})
                else:
                    assert call == {"index": len(calls) - 1, "function": {"arguments": call["function"]["arguments"]}}
                    calls[-1]["function"]["arguments"] += call["function"]["arguments"]
    return {"content": content, **({"tool_calls": calls} if calls else {})}


def reason_of(chunks: list[Any], index: int = 0) -> Any:
    (reason,) = [
        choice["finish_reason"]
        for chunk in chunks
        for choice in chunk["choices"]
        if choice["index"] == index and choice["finish_reason"]
    ]
    return reason


async def streamed(gateway: Gateway, **asked: Any) -> tuple[list[Any], Any]:
    """Chunks of a complete stream, and its usage."""
    reply = await gateway.post(stream=True, stream_options={"include_usage": True}, **asked)
    *chunks, last, done = events(reply)
    assert done == "[DONE]"
    assert all(ChatCompletionChunk.model_validate(chunk, strict=True) for chunk in chunks)
    return chunks, last["usage"]


@pytest.mark.parametrize(("told", "name"), [(name, name) for name in SAID], indirect=["told"], ids=SAID)
async def test_calls_are_told_whatever_a_block_holds(told: Gateway, name: str) -> None:
    _, _, content, calls, reason = SAID[name]
    body = (await told.post(**fields(20))).json()
    ChatCompletion.model_validate(body, strict=True)
    (choice,) = body["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == (content, reason)
    assert calls_of(choice["message"]) == calls
    for size in SIZES:
        chunks, usage = await streamed(told, **fields(size))
        message = gathered(chunks)
        assert (message["content"], reason_of(chunks), usage) == (content, reason, body["usage"])
        assert calls_of(message) == calls
    if reason == "tool_calls":
        assert all(isinstance(json.loads(arguments), dict) for _, arguments in calls)


@pytest.mark.parametrize("told", ["two"], indirect=True)
async def test_every_length_of_an_answer(told: Gateway) -> None:
    """max_tokens in the middle of anything: streamed and whole agree, and nothing looks like a call to carry out."""
    whole = spelled(SAID["two"][1])
    for limit in range(1, len(whole), 13):
        body = (await told.post(**fields(20, max_tokens=limit))).json()
        (choice,) = body["choices"]
        assert (choice["finish_reason"], body["usage"]["completion_tokens"]) == ("length", limit)
        chunks, usage = await streamed(told, **fields(20, max_tokens=limit))
        message = gathered(chunks)
        assert (message["content"] or None, reason_of(chunks), usage) == (
            choice["message"]["content"] or None,
            "length",
            body["usage"],
        )
        assert calls_of(message) == calls_of(choice["message"])
        for (_, given), (_, arguments) in zip(calls_of(message), BOTH, strict=False):
            assert arguments.startswith(given)


@pytest.mark.parametrize("told", ["two", "array", "mistral", "llama"], indirect=True)
async def test_without_parallel_calls_the_text_ends_with_the_first(told: Gateway) -> None:
    everything = (await told.post(**fields())).json()["usage"]["completion_tokens"]
    for size in SIZES:
        body = (await told.post(**fields(size, parallel_tool_calls=False))).json()
        (choice,) = body["choices"]
        assert (calls_of(choice["message"]), choice["finish_reason"]) == (BOTH[:1], "tool_calls")
        assert body["usage"]["completion_tokens"] < everything
        chunks, usage = await streamed(told, **fields(size, parallel_tool_calls=False))
        assert (calls_of(gathered(chunks)), usage) == (BOTH[:1], body["usage"])


@pytest.mark.parametrize("told", ["two"], indirect=True)
async def test_what_may_begin_a_call_is_never_shown_early(told: Gateway) -> None:
    chunks, _ = await streamed(told, **fields(2))
    shown = [chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks]
    assert "".join(shown) == "Let me see.\n"
    deltas = [call for chunk in chunks for call in chunk["choices"][0]["delta"].get("tool_calls", [])]
    assert len(deltas) > 9, "arguments come as they are written"


@pytest.mark.parametrize("told", ["two"], indirect=True)
async def test_a_stop_string_may_end_a_call(told: Gateway) -> None:
    (choice,) = (await told.post(**fields(stop="Paris"))).json()["choices"]
    assert calls_of(choice["message"]) == [("weather", '{"a": "')]
    assert choice["finish_reason"] == "stop"


@pytest.mark.parametrize("told", ["two"], indirect=True)
async def test_no_choice_of_tools_is_as_if_there_were_none(told: Gateway) -> None:
    without = (await told.post(temperature=0)).json()
    body = (await told.post(**fields(tool_choice="none"))).json()
    assert body["choices"] == without["choices"]
    assert body["choices"][0]["message"]["content"] == SAID["two"][1]
    assert body["usage"] == without["usage"]


@pytest.mark.parametrize("told", ["two"], indirect=True)
async def test_several_choices_have_calls_of_their_own(told: Gateway) -> None:
    body = (await told.post(**fields(n=3))).json()
    assert [calls_of(choice["message"]) for choice in body["choices"]] == [BOTH] * 3
    ids = {call["id"] for choice in body["choices"] for call in choice["message"]["tool_calls"]}
    assert len(ids) == 6
    chunks, usage = await streamed(told, **fields(n=3))
    assert [calls_of(gathered(chunks, index)) for index in range(3)] == [BOTH] * 3
    assert usage == body["usage"]


@pytest.mark.parametrize("told", ["two"], indirect=True)
async def test_every_token_of_a_call_has_its_log_probability(told: Gateway) -> None:
    body = (await told.post(**fields(logprobs=True))).json()
    entries = body["choices"][0]["logprobs"]["content"]
    assert len(entries) == body["usage"]["completion_tokens"]
    assert b"".join(bytes(entry["bytes"] or ()) for entry in entries).decode() == SAID["two"][1]
    chunks, _ = await streamed(told, **fields(logprobs=True))
    pieces = [chunk["choices"][0]["logprobs"] for chunk in chunks]
    assert [entry for piece in pieces if piece for entry in piece["content"]] == entries


async def test_a_stream_is_taken_up_again_at_every_event(both: tuple[Gateway, Gateway]) -> None:
    one, other = both
    for size in (6, 20):
        reply = await one.post(stream=True, **fields(size))
        session = reply.headers["x-session-id"]
        first = named_events(reply)
        everything = gathered([data for _, data in first[:-1]])
        assert calls_of(everything) == BOTH
        for place, (name, _) in enumerate(first[:-1]):
            rest = named_events(await resume(other, session, name))
            joined = gathered([data for _, data in first[: place + 1] + rest[:-1]])
            assert joined == everything, name
            assert reason_of([data for _, data in rest[:-1]]) == "tool_calls"
        again = named_events(await resume(other, session))
        assert gathered([data for _, data in again[:-1]]) == everything


@pytest.mark.parametrize("rounds", [3, 6])
async def test_a_call_goes_on_on_another_gateway(both: tuple[Gateway, Gateway], rounds: int) -> None:
    one, other = both
    await one.store._client.flushall()
    one.peers.held = {rounds: asyncio.Event()}
    running = asyncio.create_task(one.post(stream=True, **fields(9)))
    session = await running_session(one, rounds)
    await let_go(one, session)
    taken = named_events(await resume(other, session))
    one.peers.held[rounds].set()
    answer = named_events(await running)
    told = [gathered([data for _, data in stream[:-1]]) for stream in (taken, answer)]
    assert told[0] == told[1]
    assert calls_of(told[0]) == BOTH


async def test_results_go_back_to_the_model(both: tuple[Gateway, Gateway]) -> None:
    one, _ = both
    message = (await one.post(**fields())).json()["choices"][0]["message"]
    results = [
        {"role": "tool", "tool_call_id": call["id"], "content": "<|im_end|> 21"} for call in message["tool_calls"]
    ]
    reply = await one.post(messages=[{"role": "user", "content": "hi"}, message, *results], **fields())
    assert reply.status_code == 200, reply.text
    prompt = one.services.engine.text.decode((await one.stored(reply)).record.prompt)
    assert f'{{"name": "weather", "arguments": {json.dumps(json.loads(PARIS), ensure_ascii=False)}}}' in prompt
    assert prompt.count("<tool_response>\n<|im_end|> 21") == 2
    counted = {"messages": [{"role": "user", "content": "hi"}], "tools": TOOLS}
    there = (await one.client.post("/tokenize", json=counted)).json()
    asked = (await one.post(messages=counted["messages"], **fields())).json()
    assert there["count"] == asked["usage"]["prompt_tokens"]


async def test_a_template_without_tools_is_said_to_have_none(redis_url: str, tmp_path: Path) -> None:
    text = ChatText.load(write_recital(tmp_path, TEMPLATE, ("<|im_start|>", "<|im_end|>")))
    call = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
    user = {"role": "user", "content": "hi"}
    async with gateway_of(redis_url, text, spec=SPEC) as gateway:
        refused = (await gateway.post(tools=TOOLS)).json()["error"]
        assert refused["param"] == "tools"
        assert "chat template knows no tools" in refused["message"]
        messages = [user, {"role": "assistant", "content": "", "tool_calls": [call]}]
        refused = (await gateway.post(messages=messages)).json()["error"]
        assert refused["param"] == "messages[1].tool_calls"
        assert (await gateway.post(tools=TOOLS, tool_choice="none", max_tokens=1)).status_code == 200
        assert (await gateway.client.post("/tokenize", json={"messages": [user], "tools": TOOLS})).status_code == 400
