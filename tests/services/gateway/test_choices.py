"""Several choices, log-probabilities and what is done to logits, over HTTP."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.completion import Completion

from adasd.core.decoding import TokenBoundary
from adasd.core.errors import DeadlineExceeded
from adasd.core.stopping import stopping_rule
from adasd.core.types import Processing, SamplingParams
from tests.services.gateway.conftest import Gateway, events
from tests.services.gateway.test_lifecycle import until

EXACT: dict[str, Any] = {"speculation": {"acceptance": "exact", "stopping": "fixed"}}
USAGE: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}


def entries(chunks: list[Any]) -> list[Any]:
    told = (chunk["choices"][0]["logprobs"] for chunk in chunks if chunk["choices"])
    return [entry for logprobs in told if logprobs for entry in logprobs["content"]]


@pytest.mark.parametrize(
    ("fields", "processing"),
    [
        ({"frequency_penalty": 1.5}, Processing(frequency_penalty=1.5)),
        ({"presence_penalty": -2}, Processing(presence_penalty=-2.0)),
        ({"repetition_penalty": 1.7}, Processing(repetition_penalty=1.7)),
        ({"logit_bias": {"3": -100, "2": 5}}, Processing(logit_bias=((2, 5.0), (3, -100.0)))),
        ({"min_tokens": 40, "logit_bias": {"0": 3}}, Processing(((0, 3.0),), min_tokens=40, eos_ids=(0,))),
        ({"ignore_eos": True, "logit_bias": {"0": 3}}, Processing(((0, 3.0),))),
    ],
)
async def test_logits_are_processed_as_the_reference_loop_does(
    gateway: Gateway, fields: dict[str, Any], processing: Processing
) -> None:
    reply = await gateway.post(seed=5, max_tokens=60, **EXACT, **fields)
    assert reply.status_code == 200, reply.text
    stored, ignore = await gateway.stored(reply), fields.get("ignore_eos", False)
    sampling = SamplingParams(seed=5, processing=processing, ignore_eos=ignore)
    plain = replace(sampling, processing=Processing(), ignore_eos=False)
    texts = []
    for asked in (sampling, plain):
        boundary = TokenBoundary(() if asked.ignore_eos else {0}, 60)
        rule, prompt = stopping_rule("fixed", None), list(stored.record.prompt)
        rounds = gateway.oracle.generate(prompt, asked, rule, "exact", 60, boundary)
        texts.append([token for step in rounds for token in step.verdict.tokens])
    assert list(stored.ids)[len(stored.record.prompt) :] == texts[0]
    assert texts[0] != texts[1]
    assert gateway.services.engine.session(stored.record).generation.sampling == sampling


async def test_choices_are_those_of_one_seed(gateway: Gateway) -> None:
    fields = {"seed": 4, "max_tokens": 20}
    alone = (await gateway.post(**fields)).json()
    reply = await gateway.post(n=3, **fields)
    body = ChatCompletion.model_validate(reply.json(), strict=True)
    assert "x-session-id" not in reply.headers
    assert [choice.index for choice in body.choices] == [0, 1, 2]
    assert body.choices[0].message.content == alone["choices"][0]["message"]["content"]
    assert len({choice.message.content for choice in body.choices}) == 3
    assert body.usage is not None
    assert body.usage.prompt_tokens == alone["usage"]["prompt_tokens"]
    assert gateway.services.capacity.in_hand == 0

    *chunks, last, done = events(await gateway.post(n=3, **USAGE, **fields))
    assert done == "[DONE]"
    assert (last["choices"], last["usage"]) == ([], reply.json()["usage"])
    for choice in body.choices:
        mine = [part for chunk in chunks for part in chunk["choices"] if part["index"] == choice.index]
        assert [part["delta"].get("role") for part in mine] == ["assistant"] + [None] * (len(mine) - 1)
        assert [part["finish_reason"] for part in mine] == [None] * (len(mine) - 1) + [choice.finish_reason]
        assert "".join(part["delta"].get("content") or "" for part in mine) == choice.message.content


@pytest.mark.parametrize("stream", [False, True])
async def test_what_ends_one_choice_ends_all(gateway: Gateway, stream: bool) -> None:
    gateway.peers.failures[2] = DeadlineExceeded("no verdict in time")
    reply = await gateway.post(n=3, stream=stream, max_tokens=100, ignore_eos=True)
    error = events(reply)[-1] if stream else reply.json()
    assert error["error"]["code"] == "deadline_exceeded"
    assert (gateway.peers.open, gateway.services.capacity.in_hand) == (0, 0)


async def test_choices_count_against_the_capacity(gateway: Gateway) -> None:
    reply = await gateway.post(n=5, max_tokens=1)
    assert (reply.status_code, reply.json()["error"]["code"]) == (429, "overloaded")
    assert gateway.services.capacity.in_hand == 0


async def test_every_token_has_its_log_probability(gateway: Gateway) -> None:
    fields = {"seed": 3, "max_tokens": 25, "logprobs": True, "top_logprobs": 4, "stop": ["zqz"], **EXACT}
    reply = await gateway.post(**fields)
    body = ChatCompletion.model_validate(reply.json(), strict=True)
    (choice,) = body.choices
    assert choice.logprobs is not None
    assert choice.logprobs.content is not None
    told, stored = choice.logprobs.content, await gateway.stored(reply)
    sampling, rule = SamplingParams(seed=3), stopping_rule("fixed", None)
    rounds = gateway.oracle.generate(list(stored.record.prompt), sampling, rule, "exact", 25, None, 4)
    expected = [entry for step in rounds for entry in step.verdict.logprobs]
    assert [entry.logprob for entry in told] == pytest.approx([entry.logprob for entry in expected])
    assert [[top.logprob for top in entry.top_logprobs] for entry in told] == [
        pytest.approx(entry.top) for entry in expected
    ]
    assert b"".join(bytes(entry.bytes or ()) for entry in told).decode() == choice.message.content
    *chunks, last, _ = events(await gateway.post(**USAGE, **fields))
    assert all(ChatCompletionChunk.model_validate(chunk, strict=True) for chunk in chunks)
    assert entries(chunks) == reply.json()["choices"][0]["logprobs"]["content"]
    assert len(told) == last["usage"]["completion_tokens"]
    again = await gateway.client.get(f"/v1/sessions/{reply.headers['x-session-id']}/stream")
    assert (again.status_code, again.json()["error"]["code"]) == (409, "conflict")


async def test_usage_so_far(gateway: Gateway) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    *chunks, last, _ = events(await gateway.post(n=2, max_tokens=9, stream=True, stream_options=options))
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts)
    assert last["usage"] == chunks[-1]["usage"]


async def test_completions_go_on_with_texts_and_ids(gateway: Gateway) -> None:
    fields = {"seed": 8, "max_tokens": 12}
    ids = (await gateway.client.post("/tokenize", json={"prompt": "hello"})).json()["tokens"]
    one = Completion.model_validate((reply := await gateway.complete("hello", **fields)).json(), strict=True)
    assert one.choices[0].text == (await gateway.complete(ids, **fields)).json()["choices"][0]["text"]
    assert one.id.startswith("cmpl-")
    assert one.usage is not None
    assert one.usage.prompt_tokens == len(ids)
    assert reply.json()["metrics"]["speculative_decoding"]["num_drafts"] == reply.json()["speculation"]["drafts"]
    many = (await gateway.complete(["hello", "you"], n=2, echo=True, **fields)).json()
    texts = [choice["text"] for choice in many["choices"]]
    assert [choice["index"] for choice in many["choices"]] == [0, 1, 2, 3]
    assert texts[0] == "hello" + one.choices[0].text
    assert [text[:3] for text in texts] == ["hel", "hel", "you", "you"]
    assert many["usage"]["prompt_tokens"] == len(ids) + 3
    *chunks, done = events(await gateway.complete("hello", stream=True, echo=True, **fields))
    assert done == "[DONE]"
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == texts[0]
    for prompt in ("", [48]):
        refused = await gateway.complete(prompt)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "prompt")


async def test_log_probabilities_of_completions(gateway: Gateway) -> None:
    reply = await gateway.complete(seed=8, max_tokens=12, logprobs=2, ignore_eos=True, logit_bias={"0": -100})
    (choice,) = Completion.model_validate(reply.json(), strict=True).choices
    told = choice.logprobs
    assert told is not None
    assert "".join(told.tokens or []) == choice.text
    assert told.text_offset == list(range(12))
    for token, value, top in zip(told.tokens or [], told.token_logprobs or [], told.top_logprobs or [], strict=True):
        assert top[token] == value
        assert len(top) in (2, 3)


@pytest.mark.parametrize("size", [1, 2, 5, 20])
async def test_boundaries_fall_anywhere_in_a_block(gateway: Gateway, size: int) -> None:
    """Text, reason, usage and entries are those of the target alone, on both interfaces, streamed or not."""
    fixed = {"acceptance": "exact", "stopping": "fixed", "max_candidates": size}
    whole = (await gateway.complete(temperature=0, max_tokens=24, speculation={"stopping": "off"})).json()
    text = whole["choices"][0]["text"]
    cases: list[dict[str, Any]] = [{"max_tokens": limit} for limit in (1, 2, 5, 7)]
    cases += [{"max_tokens": 24, "stop": text[at : at + 3]} for at in (0, 1, 4, 6)]
    cases += [{"max_tokens": 30, "seed": seed, "temperature": 1, "logit_bias": {"0": 4}} for seed in range(4)]
    for case in cases:
        fields = {"temperature": 0, "logprobs": 0, **case}
        alone = (await gateway.complete(**fields, speculation={"stopping": "off", "acceptance": "exact"})).json()
        body = (await gateway.complete(**fields, speculation=fixed | {"acceptance": "coupled"})).json()
        if fields["temperature"] == 0:
            assert body["choices"] == alone["choices"]
            assert body["usage"] == alone["usage"]
        *chunks, last, _ = events(
            await gateway.complete(**fields, **USAGE, speculation=fixed | {"acceptance": "coupled"})
        )
        parts = [chunk["choices"][0] for chunk in chunks]
        assert "".join(part["text"] for part in parts) == body["choices"][0]["text"]
        assert parts[-1]["finish_reason"] == body["choices"][0]["finish_reason"]
        tokens = [token for part in parts if part["logprobs"] for token in part["logprobs"]["tokens"]]
        assert tokens == body["choices"][0]["logprobs"]["tokens"]
        assert len(tokens) == last["usage"]["completion_tokens"] == body["usage"]["completion_tokens"]


async def test_a_client_that_leaves_ends_all_choices(gateway: Gateway) -> None:
    gateway.peers.held[1] = asyncio.Event()
    asking = asyncio.create_task(gateway.post(n=2, max_tokens=50))
    await until(lambda: gateway.peers.open == 4)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert gateway.services.capacity.in_hand == 0
