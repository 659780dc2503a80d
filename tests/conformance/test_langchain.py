"""langchain-openai: chats and texts, whole, streamed, in batches."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import openai
import pytest
from langchain_core.exceptions import ContextOverflowError
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langchain_openai import ChatOpenAI, OpenAI
from pydantic import SecretStr

from tests.conformance.conftest import KEY, MODEL, Ask
from tests.conformance.recorder import Recorder, unasked

Chat = Callable[..., ChatOpenAI]

SEEDED: dict[str, Any] = {"seed": 5, "max_tokens": 24}
TURNS = [
    SystemMessage("Be brief."),
    HumanMessage("hello"),
    AIMessage("hi"),
    HumanMessage([{"type": "text", "text": "go on"}]),
]
UNASKED_TEXT = {
    "frequency_penalty": 0, "logprobs": None, "max_tokens": 256, "n": 1, "presence_penalty": 0, "seed": None,
    "temperature": 0.7, "top_p": 1,
}  # fmt: skip
"""Of `OpenAI`: its own defaults, sent with every request."""


@pytest.fixture
def chat(url: str) -> Chat:
    return partial(ChatOpenAI, model=MODEL, base_url=url, api_key=SecretStr(KEY), max_retries=0)


@pytest.fixture
def text(url: str) -> Callable[..., OpenAI]:
    return partial(OpenAI, model=MODEL, base_url=url, api_key=SecretStr(KEY), max_retries=0)


def test_what_is_sent_unasked(chat: Chat, text: Callable[..., OpenAI], recorder: Recorder) -> None:
    first = chat().invoke("hello")
    short = first.model_copy(update={"content": first.text[:20]})  # however long it was, the next one needs room
    chat().invoke([*TURNS, short, HumanMessage("and now?")])
    list(chat().stream("hello"))
    list(chat(stream_usage=True).stream("hello"))
    text().invoke("hello")
    list(text().stream("hello"))
    asked = [unasked(body, "model", "messages", "prompt") for body in recorder.bodies]
    with_usage = {"stream": True, "stream_options": {"include_usage": True}}
    assert asked[:4] == [{"stream": False}, {"stream": False}, {"stream": True}, with_usage]
    assert asked[4:] == [UNASKED_TEXT, {"stream": True, **UNASKED_TEXT}]
    assert {field for message in recorder.bodies[1]["messages"] for field in message} == {"role", "content"}


def test_invoke(chat: Chat, again: Ask) -> None:
    answer, plain = chat(**SEEDED).invoke(TURNS), again()
    assert answer.content == plain["choices"][0]["message"]["content"]
    assert answer.response_metadata["finish_reason"] == plain["choices"][0]["finish_reason"]
    assert answer.usage_metadata is not None
    assert answer.usage_metadata["input_tokens"] == plain["usage"]["prompt_tokens"]
    assert answer.usage_metadata["output_tokens"] == plain["usage"]["completion_tokens"]


async def test_streams(chat: Chat, again: Ask) -> None:
    model = chat(**SEEDED, stream_usage=True)
    chunks = list(model.stream(TURNS))
    parts = [chunk async for chunk in model.astream(TURNS)]
    plain = again()
    whole = chunks[0]
    for chunk in chunks[1:]:
        whole += chunk  # type: ignore[assignment]
    assert whole.content == "".join(str(part.content) for part in parts) == plain["choices"][0]["message"]["content"]
    assert whole.usage_metadata is not None
    assert whole.usage_metadata["total_tokens"] == plain["usage"]["total_tokens"]
    assert whole.response_metadata["finish_reason"] == plain["choices"][0]["finish_reason"]


async def test_batches(chat: Chat) -> None:
    """Repetitions count the prompt too, so that each question has an answer of its own."""
    model = chat(**SEEDED, extra_body={"repetition_penalty": 3})
    questions = [f"question {number}" for number in range(4)]
    alone = [model.invoke(question).content for question in questions]
    assert [answer.content for answer in model.batch(questions)] == alone
    assert [answer.content for answer in await model.abatch(questions)] == alone
    assert len(set(alone)) == len(alone)


def test_choices_log_probabilities_and_stops(chat: Chat, again: Ask) -> None:
    results = chat(**SEEDED, n=3).generate([[HumanMessage("hello")]])
    texts = [generation.text for generation in results.generations[0]]
    assert texts == [choice["message"]["content"] for choice in again()["choices"]]
    assert len(set(texts)) == 3
    told = chat(**SEEDED, logprobs=True, top_logprobs=3).invoke("hello")
    assert told.response_metadata["logprobs"]["content"] == again()["choices"][0]["logprobs"]["content"]
    stop = texts[0][4:6]
    assert chat(**SEEDED).invoke("hello", stop=[stop]).content == texts[0][: texts[0].index(stop)]


def test_all_that_a_user_can_set(chat: Chat, again: Ask) -> None:
    options: dict[str, Any] = {"temperature": 0.5, "top_p": 0.9, "frequency_penalty": 0.5, "presence_penalty": 0.5}
    options |= {"logit_bias": {"5": 2}, "extra_body": {"top_k": 20, "speculation": {"acceptance": "coupled"}}}
    assert chat(**SEEDED, **options).invoke("hello").content == again()["choices"][0]["message"]["content"]


def test_texts(text: Callable[..., OpenAI], again: Ask) -> None:
    model = text(**SEEDED)
    whole = model.invoke("tell me")
    assert whole == again()["choices"][0]["text"] == "".join(model.stream("tell me"))
    results = text(**SEEDED, n=2, best_of=1).generate(["tell", "me"])
    assert [[choice.text for choice in choices] for choices in results.generations] == [
        [choice["text"] for choice in again()["choices"][first : first + 2]] for first in (0, 2)
    ]
    assert results.llm_output is not None
    assert results.llm_output["token_usage"]["completion_tokens"] == again()["usage"]["completion_tokens"]


def test_errors_have_their_classes(chat: Chat) -> None:
    with pytest.raises(ContextOverflowError):
        chat().invoke("a" * 700)
    with pytest.raises(openai.BadRequestError, match="temperature"):
        chat(temperature=3).invoke("hello")
    with pytest.raises(openai.NotFoundError, match="served: test"):
        chat(model="gpt-5").invoke("hello")
