"""What the clients that people use make of calls: the OpenAI SDK, its helpers for streams and models, LangChain."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest
import uvicorn
from langchain_core.messages import AIMessageChunk, HumanMessage, ToolMessage
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, ConfigDict

from services.gateway.text import ChatText
from tests.services.gateway.conftest import Gateway, gateway_of
from tests.services.gateway.recital import SPEC, reciting, spelled, write_recital
from tests.services.gateway.test_lifecycle import until

ARGUMENTS = '{"city": "Paris"}'
CALL = f'<tool_call>{{"name": "Weather", "arguments": {ARGUMENTS}}}</tool_call>'
USER: Any = [{"role": "user", "content": "hi"}]


class Weather(BaseModel):
    """What it is like outside."""

    model_config = ConfigDict(extra="forbid")

    city: str


@pytest.fixture
async def calling(redis_url: str, tmp_path: Path) -> AsyncIterator[Gateway]:
    """A gateway whose model says something and then calls twice."""
    async with gateway_of(redis_url, ChatText.load(write_recital(tmp_path)), spec=SPEC) as gateway:
        answer = spelled(f"I look.\n{CALL}\n{CALL}")
        gateway.peers.target_replica, gateway.peers.draft_replica = reciting(answer), reciting(answer)
        yield gateway


@pytest.fixture
async def url(calling: Gateway) -> AsyncIterator[str]:
    server = uvicorn.Server(uvicorn.Config(calling.app, port=0, log_config=None, timeout_graceful_shutdown=1))
    serving = asyncio.create_task(server.serve())
    await until(lambda: server.started)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/v1"
    server.should_exit = True
    await serving


async def test_the_openai_client_and_its_helpers(url: str) -> None:
    offered = openai.pydantic_function_tool(Weather)
    async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
        asked: Any = {"model": "toy", "messages": USER, "tools": [offered], "temperature": 0}
        whole = (await client.chat.completions.create(**asked)).choices[0]
        assert (whole.finish_reason, whole.message.content) == ("tool_calls", "I look.\n")
        calls = whole.message.tool_calls
        assert calls is not None
        assert [call.function.arguments for call in calls if call.type == "function"] == [ARGUMENTS] * 2
        parsed = (await client.chat.completions.parse(**asked)).choices[0].message
        assert [call.function.parsed_arguments for call in parsed.tool_calls or ()] == [Weather(city="Paris")] * 2
        async with client.chat.completions.stream(**asked) as stream:
            done = [event async for event in stream if event.type == "tool_calls.function.arguments.done"]
            final = (await stream.get_final_completion()).choices[0]
        assert [event.parsed_arguments for event in done] == [Weather(city="Paris")] * 2
        assert (final.finish_reason, final.message.content) == ("tool_calls", "I look.\n")
        for message in (whole.message, parsed, final.message):
            ids = [call.id for call in message.tool_calls or ()]
            results: Any = [{"role": "tool", "tool_call_id": name, "content": "sunny"} for name in ids]
            again = await client.chat.completions.create(**{**asked, "messages": [*USER, message, *results]})
            assert again.choices[0].message.tool_calls
        forced: Any = {"type": "function", "function": {"name": "Weather"}}
        once = await client.chat.completions.create(**asked, tool_choice=forced)
        assert len(once.choices[0].message.tool_calls or ()) == 1


async def test_the_blocking_openai_client(url: str) -> None:
    def ask() -> list[str]:
        with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as client:
            tools: Any = [{"type": "function", "function": {"name": "Weather"}}]
            stream = client.chat.completions.create(
                model="toy", messages=USER, tools=tools, temperature=0, stream=True, parallel_tool_calls=False
            )
            deltas = [call for chunk in stream for call in chunk.choices[0].delta.tool_calls or ()]
        assert [call.id is not None for call in deltas] == [True] + [False] * (len(deltas) - 1)
        return ["".join((call.function and call.function.arguments) or "" for call in deltas)]

    assert await asyncio.to_thread(ask) == [ARGUMENTS]


async def test_langchain(calling: Gateway, url: str) -> None:
    chat = ChatOpenAI(base_url=url, api_key="none", model="toy", temperature=0, max_retries=0)  # type: ignore[arg-type]
    bound = chat.bind_tools([Weather])
    answer = await bound.ainvoke("hi")
    assert [(call["name"], call["args"]) for call in answer.tool_calls] == [("Weather", {"city": "Paris"})] * 2
    assert not answer.invalid_tool_calls
    gathered: Any = None
    async for chunk in bound.astream("hi"):
        assert isinstance(chunk, AIMessageChunk)
        gathered = chunk if gathered is None else gathered + chunk
    assert [(call["name"], call["args"]) for call in gathered.tool_calls] == [("Weather", {"city": "Paris"})] * 2
    results = [ToolMessage("sunny", tool_call_id=call["id"]) for call in answer.tool_calls]
    assert (await bound.ainvoke([HumanMessage("hi"), answer, *results])).tool_calls
    calling.peers.target_replica = reciting(spelled(CALL))
    structured = chat.with_structured_output(Weather, method="function_calling")
    assert await structured.ainvoke("hi") == Weather(city="Paris")
