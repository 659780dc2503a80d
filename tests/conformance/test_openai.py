"""The openai SDK, every reply checked against its own types."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletion

from tests.conformance.conftest import KEY, MODEL, NARROW_KEY, Ask
from tests.conformance.recorder import Recorder, unasked
from tests.e2e.conftest import Served

SEEDED: dict[str, Any] = {"model": MODEL, "seed": 3, "max_tokens": 40}
MESSAGES: Any = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "tell me more"}]
LONG: Any = [{"role": "user", "content": "a" * 700}]
USAGE: Any = {"include_usage": True}


@pytest.fixture
def client(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=url, api_key=KEY, max_retries=0, _strict_response_validation=True) as client:
        yield client


def text_of(body: dict[str, Any]) -> str:
    choice = body["choices"][0]
    return str(choice["message"]["content"] if "message" in choice else choice["text"])


def test_what_is_sent_unasked(client: openai.OpenAI, recorder: Recorder) -> None:
    whole = client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=2)
    client.chat.completions.create(model=MODEL, messages=[*MESSAGES, whole.choices[0].message, *MESSAGES], max_tokens=2)
    list(client.chat.completions.create(model=MODEL, messages=MESSAGES, stream=True, max_tokens=2))
    with client.chat.completions.stream(model=MODEL, messages=MESSAGES, max_tokens=2) as stream:
        stream.until_done()
    client.completions.create(model=MODEL, prompt="hi", max_tokens=2)
    sent = [unasked(body, "model", "messages", "prompt", "max_tokens") for body in recorder.bodies]
    assert sent == [{}, {}, {"stream": True}, {"stream": True}, {}]
    echoed = recorder.bodies[1]["messages"][2]
    assert unasked(echoed, "role", "content") == {"refusal": None}


def test_whole_answers_and_streams_are_one_text(client: openai.OpenAI, again: Ask) -> None:
    whole = client.chat.completions.create(**SEEDED, messages=MESSAGES)
    plain = again()
    chunks = list(client.chat.completions.create(**SEEDED, messages=MESSAGES, stream=True, stream_options=USAGE))
    streamed = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    ends = [choice.finish_reason for chunk in chunks for choice in chunk.choices if choice.finish_reason]
    assert whole.choices[0].message.content == streamed == text_of(plain)
    assert [whole.choices[0].finish_reason] == ends == [plain["choices"][0]["finish_reason"]]
    assert whole.usage == chunks[-1].usage
    assert [chunk.usage for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert {chunk.id for chunk in chunks} == {chunks[0].id}
    assert {chunk.system_fingerprint for chunk in chunks} == {whole.system_fingerprint}


def test_the_stream_helper_puts_an_answer_together(client: openai.OpenAI, again: Ask) -> None:
    with client.chat.completions.stream(**SEEDED, messages=MESSAGES, stream_options=USAGE, logprobs=True) as stream:
        events = list(stream)
        final = stream.get_final_completion()
    plain = again()
    kinds = {event.type for event in events}
    assert {"chunk", "content.delta", "content.done", "logprobs.content.delta", "logprobs.content.done"} <= kinds
    assert final.choices[0].message.content == text_of(plain)
    assert final.usage is not None
    assert final.usage.completion_tokens == plain["usage"]["completion_tokens"]
    assert final.choices[0].logprobs is not None
    assert len(final.choices[0].logprobs.content or ()) == final.usage.completion_tokens


async def test_the_asynchronous_client(url: str, again: Ask) -> None:
    async with openai.AsyncOpenAI(base_url=url, api_key=KEY, _strict_response_validation=True) as client:
        whole = await client.chat.completions.create(**SEEDED, messages=MESSAGES)
        stream = await client.chat.completions.create(**SEEDED, messages=MESSAGES, stream=True)
        streamed = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
        async with client.chat.completions.stream(**SEEDED, messages=MESSAGES) as helper:
            final = await helper.get_final_completion()
        names = [model.id async for model in client.models.list()]
        text = await client.completions.create(**SEEDED, prompt="tell me")
    assert whole.choices[0].message.content == streamed == final.choices[0].message.content
    assert names == [MODEL]
    assert text.choices[0].text == text_of(again())


def test_several_choices_with_log_probabilities(client: openai.OpenAI, again: Ask) -> None:
    ask = partial(client.chat.completions.create, **SEEDED, messages=MESSAGES, n=3, logprobs=True, top_logprobs=2)
    whole, texts, entries = ask(), ["", "", ""], [0, 0, 0]
    for chunk in ask(stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            entries[choice.index] += len(choice.logprobs.content or ()) if choice.logprobs else 0
    assert [choice.message.content for choice in whole.choices] == texts
    assert len(set(texts)) == 3
    assert whole.usage is not None
    assert sum(entries) == whole.usage.completion_tokens
    assert [choice["message"]["content"] for choice in again()["choices"]] == texts


def test_raw_and_streaming_responses(client: openai.OpenAI) -> None:
    raw = client.chat.completions.with_raw_response.create(**SEEDED, messages=MESSAGES)
    parsed = raw.parse()
    assert isinstance(parsed, ChatCompletion)
    assert len(bytes.fromhex(raw.headers["x-session-id"])) == 16
    assert raw.headers["x-request-id"] == parsed._request_id
    opened = client.chat.completions.with_streaming_response.create(**SEEDED, messages=MESSAGES, stream=True)
    with opened as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = [line for line in response.iter_lines() if line.startswith("data: ")]
    assert lines[-1] == "data: [DONE]"


def test_completions(client: openai.OpenAI, again: Ask) -> None:
    whole = client.completions.create(**SEEDED, prompt=["tell", "me more"], n=2, logprobs=2)
    plain = again()
    assert [choice.text for choice in whole.choices] == [choice["text"] for choice in plain["choices"]]
    assert whole.usage is not None
    counts = [len(choice.logprobs.tokens or ()) for choice in whole.choices if choice.logprobs]
    assert sum(counts) == whole.usage.completion_tokens


def test_streamed_completions(url: str, again: Ask) -> None:
    """Not by the types: they leave out that a chunk in mid-text has no finish reason, as OpenAI's own have none."""
    with openai.OpenAI(base_url=url, api_key=KEY) as client:
        ask = partial(client.completions.create, **SEEDED, prompt="tell", echo=True)
        chunks = list(ask(stream=True, stream_options=USAGE))
    assert "".join(choice.text for chunk in chunks for choice in chunk.choices) == text_of(again())
    assert chunks[-1].usage is not None


def test_extensions_pass_through(client: openai.OpenAI) -> None:
    rules = {"speculation": {"stopping": "fixed", "acceptance": "coupled", "max_candidates": 3}, "min_tokens": 30}
    whole = client.chat.completions.create(**SEEDED, messages=MESSAGES, extra_body=rules)
    assert whole.model_extra is not None
    assert whole.model_extra["speculation"]["stopping"] == "fixed"
    assert whole.usage is not None
    assert whole.usage.completion_tokens >= 30


def test_models(client: openai.OpenAI) -> None:
    listed = client.models.list()
    assert [model.id for model in listed] == [MODEL]
    assert client.models.retrieve(MODEL) == listed.data[0]


@pytest.mark.parametrize(
    ("fields", "kind", "param", "code"),
    [
        ({"temperature": 3}, openai.BadRequestError, "temperature", None),
        ({"messages": [{"role": "robot", "content": "x"}]}, openai.BadRequestError, "messages[0].role", None),
        ({"messages": []}, openai.BadRequestError, "messages", None),
        ({"store": True}, openai.BadRequestError, "store", None),
        ({"extra_body": {"nonsense": 1}}, openai.BadRequestError, "nonsense", None),
        ({"messages": LONG}, openai.BadRequestError, "messages", "context_length_exceeded"),
        ({"model": "gpt-5"}, openai.NotFoundError, "model", "model_not_found"),
        ({"extra_body": {"session": "0" * 32}}, openai.NotFoundError, None, "session_not_found"),
        ({"extra_headers": {"Authorization": "Bearer other"}}, openai.AuthenticationError, None, "invalid_api_key"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("stream", [False, True])
def test_errors_are_the_sdks_own(
    client: openai.OpenAI,
    fields: dict[str, Any],
    kind: type[openai.APIStatusError],
    param: str | None,
    code: str | None,
    stream: bool,
) -> None:
    with pytest.raises(kind) as raised:
        client.chat.completions.create(**{**SEEDED, "messages": MESSAGES, "stream": stream, **fields})
    error = raised.value
    assert (error.param, error.code) == (param, code)
    assert error.type == "invalid_request_error"
    assert error.request_id


def test_a_used_up_key_is_waited_for(url: str, recorder: Recorder) -> None:
    """The SDK obeys Retry-After, and gets its answer once the key's other request has ended."""
    with openai.OpenAI(base_url=url, api_key=NARROW_KEY, max_retries=0) as client:
        endless = {"max_tokens": 600, "extra_body": {"ignore_eos": True, "speculation": {"stopping": "off"}}}
        held = client.chat.completions.create(**SEEDED | endless, messages=MESSAGES, stream=True)
        with pytest.raises(openai.RateLimitError) as raised:
            client.chat.completions.create(**SEEDED, messages=MESSAGES)
        assert (raised.value.code, raised.value.response.headers["retry-after"]) == ("rate_limit_exceeded", "1")
        patient = client.with_options(max_retries=8)

        def let_go() -> None:
            deadline = time.monotonic() + 60
            while recorder.statuses[2:3] != [429] and time.monotonic() < deadline:
                time.sleep(0.01)
            held.close()

        closing = threading.Thread(target=let_go)
        closing.start()
        assert patient.chat.completions.create(**SEEDED, messages=MESSAGES).choices[0].message.content
        closing.join()
    assert recorder.statuses[:2] == [200, 429]
    assert recorder.statuses[-1] == 200
    assert set(recorder.statuses[2:-1]) == {429}


def test_a_stream_that_is_closed_is_stopped(client: openai.OpenAI, served: Served) -> None:
    with client.chat.completions.create(model=MODEL, messages=MESSAGES, stream=True, max_tokens=600) as stream:
        assert next(iter(stream)).choices[0].delta.role == "assistant"
    assert not any(served.wait_idle().values())
