"""litellm, which many proxies and agents speak through."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conformance.conftest import KEY, MODEL, Ask
from tests.conformance.recorder import Recorder, unasked

pytestmark = [
    pytest.mark.slow,  # its import takes seconds
    pytest.mark.filterwarnings("ignore"),  # its own warnings
]
SEEDED: dict[str, Any] = {"model": f"openai/{MODEL}", "seed": 7, "max_tokens": 24}
TEXT = {**SEEDED, "model": f"text-completion-openai/{MODEL}"}
MESSAGES: Any = [{"role": "user", "content": "hello there"}]
WITH_USAGE: Any = {"stream": True, "stream_options": {"include_usage": True}}


@pytest.fixture
def endpoint(url: str) -> dict[str, Any]:
    return {"api_base": url, "api_key": KEY, "num_retries": 0, "max_retries": 0}


def test_what_is_sent_unasked(endpoint: dict[str, Any], recorder: Recorder) -> None:
    import litellm

    whole = litellm.completion(**SEEDED, messages=MESSAGES, **endpoint)
    turn = whole.choices[0].message.model_dump()
    litellm.completion(**SEEDED, messages=[*MESSAGES, turn, *MESSAGES], **endpoint)
    list(litellm.completion(**SEEDED, messages=MESSAGES, stream=True, **endpoint))
    litellm.text_completion(**TEXT, prompt="hello", **endpoint)
    sent = [unasked(body, "model", "messages", "prompt", "seed", "max_tokens") for body in recorder.bodies]
    assert sent == [{}, {}, {"stream": True}, {}]
    assert recorder.bodies[1]["messages"][1].keys() == {"role", "content"}


def test_completion(endpoint: dict[str, Any], again: Ask) -> None:
    import litellm

    answer = litellm.completion(**SEEDED, messages=MESSAGES, **endpoint)
    plain = again()
    assert answer.choices[0].message.content == plain["choices"][0]["message"]["content"]
    assert answer.choices[0].finish_reason == plain["choices"][0]["finish_reason"]
    assert answer.usage.total_tokens == plain["usage"]["total_tokens"]
    text = litellm.text_completion(**TEXT, prompt="hello", **endpoint)
    assert text.choices[0].text == again()["choices"][0]["text"]


async def test_streams(endpoint: dict[str, Any], again: Ask) -> None:
    import litellm

    chunks = list(litellm.completion(**SEEDED, messages=MESSAGES, **WITH_USAGE, **endpoint))
    stream = await litellm.acompletion(**SEEDED, messages=MESSAGES, **WITH_USAGE, **endpoint)
    parts = [part async for part in stream]
    plain = again()
    for pieces in (chunks, parts):
        whole = litellm.stream_chunk_builder(pieces, messages=MESSAGES)
        assert whole.choices[0].message.content == plain["choices"][0]["message"]["content"]
        assert whole.choices[0].finish_reason == plain["choices"][0]["finish_reason"]
        assert whole.usage.completion_tokens == plain["usage"]["completion_tokens"]


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"temperature": 3}, "BadRequestError"), ({"model": "openai/gpt-5"}, "NotFoundError"),
        ({"api_key": "other"}, "AuthenticationError"),
        ({"messages": [{"role": "user", "content": "a" * 700}]}, "ContextWindowExceededError"),
    ],
)  # fmt: skip
def test_errors_have_their_classes(endpoint: dict[str, Any], fields: dict[str, Any], kind: str) -> None:
    import litellm

    with pytest.raises(getattr(litellm, kind)):
        litellm.completion(**{**SEEDED, "messages": MESSAGES, **endpoint, **fields})
