"""Chat completions over HTTP: shapes, boundaries, counts, errors."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import asdict
from functools import partial
from typing import Any

import orjson
import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from adasd.core.decoding import TokenBoundary
from adasd.core.errors import AdasdError, DeadlineExceeded, NumericalFault, ServiceUnavailable
from adasd.core.stopping import stopping_rule
from adasd.core.types import PLAIN, SamplingParams
from services.gateway.admission import Admission, PromptLimits
from services.gateway.text import ChatText
from tests.services.gateway.conftest import Gateway, events

JSON = {"Content-Type": "application/json"}
GREEDY: dict[str, Any] = {"temperature": 0, "speculation": {"acceptance": "exact", "stopping": "fixed"}}


def text_of(chunks: list[Any]) -> str:
    return "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks if chunk["choices"])


async def streamed(gateway: Gateway, **fields: Any) -> tuple[list[Any], Any]:
    """The chunks of a complete stream, and the one with the usage."""
    reply = await gateway.post(stream=True, stream_options={"include_usage": True}, **fields)
    assert reply.status_code == 200, reply.text
    *chunks, done = events(reply)
    assert done == "[DONE]"
    return chunks[:-1], chunks[-1]


async def test_a_whole_answer(gateway: Gateway) -> None:
    reply = await gateway.post(max_tokens=20, seed=1, user="somebody")
    body = ChatCompletion.model_validate(reply.json(), strict=True)
    (choice,) = body.choices
    assert (choice.finish_reason, choice.message.role, choice.index) == ("length", "assistant", 0)
    assert body.usage is not None
    assert (body.usage.completion_tokens, body.usage.total_tokens) == (20, body.usage.prompt_tokens + 20)
    assert body.model == "toy"
    assert body.system_fingerprint is not None
    assert reply.headers["x-request-id"].startswith("req_")


async def test_a_stream_has_one_role_one_finish_and_an_end(gateway: Gateway) -> None:
    reply = await gateway.post(max_tokens=20, seed=1, stream=True)
    *chunks, done = events(reply)
    assert done == "[DONE]"
    assert all(ChatCompletionChunk.model_validate(chunk, strict=True) for chunk in chunks)
    assert len({(chunk["id"], chunk["created"], chunk["model"]) for chunk in chunks}) == 1
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert deltas[-1] == {}
    assert all(delta.keys() == {"content"} for delta in deltas[1:-1])
    reasons = [chunk["choices"][0]["finish_reason"] for chunk in chunks]
    assert reasons == [None] * (len(chunks) - 1) + ["length"]
    assert not any("usage" in chunk or "speculation" in chunk for chunk in chunks)


async def test_a_stream_is_not_buffered_on_its_way(gateway: Gateway) -> None:
    reply = await gateway.post(max_tokens=3, stream=True)
    assert reply.headers["cache-control"] == "no-cache"
    assert reply.headers["x-accel-buffering"] == "no"
    assert "content-encoding" not in reply.headers


async def test_usage_comes_last_and_only_if_asked_for(gateway: Gateway) -> None:
    chunks, last = await streamed(gateway, max_tokens=20, seed=1)
    assert ChatCompletionChunk.model_validate(last, strict=True).choices == []
    assert last["usage"]["completion_tokens"] == 20
    assert all(chunk["usage"] is None and "speculation" not in chunk for chunk in chunks)


@pytest.mark.parametrize("stopping", ["off", "fixed", "adasd", "marginal"])
@pytest.mark.parametrize("acceptance", ["exact", "adasd", "adasd-anchored", "coupled"])
async def test_stream_and_whole_answer_agree_under_every_rule(gateway: Gateway, stopping: str, acceptance: str) -> None:
    fields: dict[str, Any] = {"seed": 7, "speculation": {"stopping": stopping, "acceptance": acceptance}}
    whole = (await gateway.post(**fields)).json()
    chunks, last = await streamed(gateway, **fields)
    assert text_of(chunks) == whole["choices"][0]["message"]["content"]
    assert chunks[-1]["choices"][0]["finish_reason"] == whole["choices"][0]["finish_reason"]
    assert last["usage"] == whole["usage"]
    if (stopping, acceptance) != ("marginal", "coupled"):  # whose candidates follow the clock, and no token does
        assert last["speculation"] == whole["speculation"]
    assert (whole["speculation"]["stopping"], whole["speculation"]["acceptance"]) == (stopping, acceptance)


@pytest.mark.parametrize("max_candidates", [1, 3, 20])
async def test_text_and_record_are_those_of_the_reference_loop(gateway: Gateway, max_candidates: int) -> None:
    reply = await gateway.post(
        seed=3,
        max_tokens=60,
        speculation={"stopping": "adasd", "acceptance": "adasd", "max_candidates": max_candidates},
    )
    stored, record = await gateway.stored(reply), reply.json()["speculation"]
    prompt = list(stored.record.prompt)
    rule = stopping_rule("adasd", max_candidates)
    boundary = TokenBoundary({0}, 60)
    rounds = list(gateway.oracle.generate(prompt, SamplingParams(seed=3), rule, "adasd", 60, boundary))
    tokens = [token for step in rounds for token in step.verdict.tokens]
    assert list(stored.ids) == prompt + tokens
    state, counters = rounds[-1].state, rounds[-1].state.counters
    assert (record["rounds"], record["drafted"], record["accepted"]) == (
        counters.rounds,
        counters.drafted,
        counters.accepted,
    )
    assert record["threshold"] == state.acceptance.rejected_entropy.mean
    assert record["mean_acceptance_length"] == 1 + counters.accepted / counters.rounds
    assert stored.finish_reason == reply.json()["choices"][0]["finish_reason"] == state.finish_reason


@pytest.mark.parametrize("limit", range(1, 15))
async def test_delivered_counted_and_stored_tokens_agree(gateway: Gateway, limit: int) -> None:
    reply = await gateway.post(max_tokens=limit, **GREEDY)
    body, stored = reply.json(), await gateway.stored(reply)
    generated = list(stored.ids)[len(stored.record.prompt) :]
    ended = 0 in generated
    assert body["usage"]["completion_tokens"] == len(generated)
    assert len(body["choices"][0]["message"]["content"]) == len(generated) - ended
    assert (await gateway.metric("adasd_gateway_generated_tokens_total")) == len(generated)


async def test_a_planted_stop_ends_the_text_wherever_it_falls(gateway: Gateway) -> None:
    text = (await gateway.post(max_tokens=24, **GREEDY)).json()["choices"][0]["message"]["content"]
    for start in range(len(text) - 3):
        stop = text[start : start + 3]
        expected = text[: text.index(stop)]
        whole = (await gateway.post(max_tokens=24, stop=stop, **GREEDY)).json()
        assert whole["choices"][0]["message"]["content"] == expected
        assert whole["choices"][0]["finish_reason"] == "stop"
        assert whole["usage"]["completion_tokens"] == len(expected) + 3
        chunks, _ = await streamed(gateway, max_tokens=24, stop=["never", stop], **GREEDY)
        assert text_of(chunks) == expected


async def test_an_eos_inside_a_block_is_the_end(gateway: Gateway) -> None:
    reasons = set()
    for seed in range(12):
        reply = await gateway.post(seed=seed, temperature=1.5, speculation={"stopping": "fixed", "acceptance": "adasd"})
        stored, body = await gateway.stored(reply), reply.json()
        generated = list(stored.ids)[len(stored.record.prompt) :]
        assert 0 not in generated[:-1]
        reasons.add(reason := body["choices"][0]["finish_reason"])
        assert (reason == "stop") == (generated[-1] == 0)
        record = body["speculation"]
        assert record["accepted"] <= record["drafted"]
        assert len(generated) in (record["accepted"] + record["rounds"], record["accepted"] + record["rounds"] - 1)
    assert reasons == {"stop", "length"}


@pytest.mark.parametrize("room", [1, 2, 5, 6, 7])
async def test_a_text_may_use_the_context_to_its_last_position(gateway: Gateway, room: int) -> None:
    prompt = "a" * (200 - room - len("user: \nassistant: "))
    for limit in (None, 10**12):
        reply = await gateway.post(prompt, max_tokens=limit, **GREEDY)
        body = reply.json()
        assert body["usage"]["prompt_tokens"] == 200 - room
        assert body["usage"]["completion_tokens"] == room or body["choices"][0]["finish_reason"] == "stop"
        assert body["usage"]["total_tokens"] <= 200


@pytest.mark.parametrize("excess", [0, 1, 5000])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_prompt_without_room_is_refused_with_both_numbers(gateway: Gateway, excess: int, stream: bool) -> None:
    length = 200 + excess
    reply = await gateway.post("a" * (length - len("user: \nassistant: ")), stream=stream)
    assert reply.status_code == 400
    error = reply.json()["error"]
    assert (error["code"], error["param"], error["type"]) == (
        "context_length_exceeded",
        "messages",
        "invalid_request_error",
    )
    assert "200" in error["message"]
    assert str(length) in error["message"]
    assert (await gateway.post(max_tokens=1)).status_code == 200


async def test_seeds(gateway: Gateway) -> None:
    async def text(seed: int | None) -> str:
        return str((await gateway.post(seed=seed, max_tokens=30)).json()["choices"][0]["message"]["content"])

    assert await text(5) == await text(5)
    assert await text(-1) == await text(-1)
    assert len({await text(seed) for seed in range(8)}) > 4
    assert len({await text(None) for _ in range(8)}) > 4


async def test_a_trace_tells_accepted_tokens_from_the_targets_own(gateway: Gateway) -> None:
    held_back = ["e~", "t~", "a~", "o~"]
    chunks, last = await streamed(gateway, max_tokens=60, seed=2, stop=held_back, speculation={"trace": True})
    marks = [chunk["adasd"] for chunk in chunks[1:-1]]
    assert not all(any(mark["pieces"]) for mark in marks), "a round without text is marked too"
    assert sum(mark["accepted"] for mark in marks) == last["speculation"]["accepted"]
    assert sum(mark["tokens"] for mark in marks) == last["usage"]["completion_tokens"]
    for name in ("accepted", "tokens"):
        assert [sum(block[name] for block in mark["blocks"]) for mark in marks] == [mark[name] for mark in marks]
    assert sum(mark["rounds"] for mark in marks) == last["speculation"]["rounds"]
    assert "".join(piece for mark in marks for piece in mark["pieces"]) == text_of(chunks)
    assert all(ChatCompletionChunk.model_validate(chunk, strict=True) for chunk in chunks)


async def test_a_session_records_all_that_its_text_depends_on(gateway: Gateway) -> None:
    reply = await gateway.post(max_tokens=5, seed=-1, top_k=5, stop=["x", "yz"], speculation={"max_candidates": 4})
    record, body = (await gateway.stored(reply)).record, reply.json()
    assert record.owner == "test"
    assert record.parameters == {
        "temperature": 1.0, "top_k": 5, "top_p": 1.0, "min_p": 0.0, "seed": 2**64 - 1, "choice": 0,
        "stopping": "adasd", "acceptance": "adasd-anchored", "max_candidates": 4, "copying": True,
        "max_tokens": 5, "context_length": 200, "eos_ids": [0],
        "stop": ["x", "yz"], "seeded": True, "window": 0.0, "cost_profile": None,
        "ignore_eos": False, "top_logprobs": None, "calls": None,
        "processing": asdict(PLAIN) | {"logit_bias": [], "eos_ids": []},
        "presentation": {
            "answer": body["id"], "model": "toy", "created": body["created"], "include_usage": False, "trace": False,
            "fingerprint": body["system_fingerprint"], "continuous_usage": False, "kind": "chat", "index": 0,
            "choices": 1, "echo": "",
        },
    }  # fmt: skip
    assert set(record.models) == {"target", "draft", "vocabulary"}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("failure", "status", "code"),
    [
        (ServiceUnavailable("no verifier answers"), 503, "service_unavailable"),
        (DeadlineExceeded("no verdict in time"), 504, "deadline_exceeded"),
        (NumericalFault("the target's logits are not numbers"), 500, "numerical_fault"),
        (AdasdError("INTERNAL: details of ours"), 500, "internal_error"),
        (RuntimeError("a bug of ours"), 500, "internal_error"),
    ],
)
async def test_a_failure_before_the_first_token_has_its_status(
    gateway: Gateway, failure: Exception, status: int, code: str, stream: bool
) -> None:
    gateway.peers.failures[0] = failure
    reply = await gateway.post(stream=stream)
    assert reply.status_code == status
    assert reply.json()["error"]["code"] == code
    assert "ours" not in reply.text
    assert ("retry-after" in reply.headers) == (status == 503)
    assert "x-session-id" in reply.headers
    assert (await gateway.metric('adasd_gateway_requests_total{outcome="error"}')) == 1


async def test_a_failure_in_mid_stream_is_the_last_event(gateway: Gateway) -> None:
    gateway.peers.failures[3] = DeadlineExceeded("no verdict in time")
    reply = await gateway.post(stream=True, max_tokens=100, temperature=0, stop="~")
    assert reply.status_code == 200
    *chunks, last = events(reply)
    assert last == {
        "error": {
            "message": "no verdict in time",
            "type": "server_error",
            "param": None,
            "code": "deadline_exceeded",
        }
    }
    assert all(chunk["choices"][0]["finish_reason"] is None for chunk in chunks)
    shown, stored = text_of(chunks), await gateway.stored(reply)
    assert len(shown) == len(stored.ids) - len(stored.record.prompt), "what was shown is what was committed"


@pytest.mark.parametrize(
    ("fields", "status", "param", "code"),
    [
        ({"model": "gpt-5"}, 404, "model", "model_not_found"),
        ({"temperature": "0.5"}, 400, "temperature", None),
        ({"nonsense": 1}, 400, "nonsense", None),
        ({"messages": []}, 400, "messages", None),
        ({"speculation": {"stopping": "always"}}, 400, "speculation.stopping", None),
        ({"speculation": {"acceptance": "always"}}, 400, "speculation.acceptance", None),
        ({"speculation": {"stopping": "off", "max_candidates": 3}}, 400, "speculation.max_candidates", None),
        ({"speculation": {"stopping": "adasd", "copying": True}}, 400, "speculation.copying", None),
    ],
)
async def test_refusals(gateway: Gateway, fields: dict[str, Any], status: int, param: str, code: str | None) -> None:
    reply = await gateway.post(**{"stream": True, **fields})
    assert reply.status_code == status
    error = reply.json()["error"]
    assert (error["param"], error["code"], error["type"]) == (param, code, "invalid_request_error")
    assert (await gateway.metric('adasd_gateway_requests_total{outcome="refused"}')) == 1


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 1e-9}, {"temperature": 5e-324}, {"temperature": -0.0}, {"temperature": 2}, {"top_p": 1e-300},
        {"min_p": 1}, {"min_p": 5e-324}, {"top_k": 2**31 - 1}, {"top_k": 1, "top_p": 0.001, "min_p": 1},
        {"seed": -(2**63)}, {"seed": 2**63 - 1}, {"max_completion_tokens": 2**63 - 1},
        {"stop": ["\u0000", "é", "a", "b"]}, {"messages": [{"role": "system", "content": "only this"}]},
        {"n": 1.0, "logit_bias": {}, "tools": [], "top_logprobs": 0, "frequency_penalty": -0.0},
    ],
)  # fmt: skip
async def test_extreme_values_have_a_defined_result(gateway: Gateway, fields: dict[str, Any]) -> None:
    reply = await gateway.post(**{"max_tokens": None if "max_completion_tokens" in fields else 3, **fields})
    assert reply.status_code == 200, reply.text
    assert ChatCompletion.model_validate(reply.json()).choices[0].finish_reason in ("stop", "length")


@pytest.mark.parametrize(
    ("field", "param"),
    [
        ('"temperature": NaN', None), ('"temperature": Infinity', None), ('"temperature": 1e999', None),
        ('"temperature": 1e308', "temperature"), ('"temperature": -1e-9', "temperature"),
        ('"seed": 9223372036854775808', "seed"), ('"seed": 1e3', "seed"), ('"top_k": 99999999999999999999', "top_k"),
        ('"max_tokens": 9223372036854775808', "max_tokens"), ('"max_tokens": 5.0', "max_tokens"),
        ('"n": 129', "n"), ('"n": 0', "n"), ('"n": -1', "n"), ('"stop": [[]]', "stop"), ('"stop": {}', "stop"),
        ('"logit_bias": {"48": 1}', "logit_bias"),
        ('"logit_bias": {"0": 1e3}', "logit_bias"), ('"stream": "yes"', "stream"), ('"": 1', ""),
        ('"messages": [[]]', "messages[0]"), ('"messages": {}', "messages"), ('"model": "\\ud800"', None),
        ('"logprobs": 1', "logprobs"), ('"top_logprobs": 5', "top_logprobs"), ('"min_tokens": -1', "min_tokens"),
        ('"logprobs": true, "top_logprobs": 21', "top_logprobs"), ('"max_tokens": 3, "min_tokens": 4', "min_tokens"),
        ('"repetition_penalty": 0', "repetition_penalty"),
        ('"n": 2, "session": "0123456789abcdef0123456789abcdef"', "session"),
        ('"n": 2, "resumable": {"window_s": 1}', "resumable"),
        ('"logprobs": true, "resumable": {"window_s": 1}', "resumable"),
    ],
)  # fmt: skip
async def test_values_that_are_none_are_refused_by_name(gateway: Gateway, field: str, param: str | None) -> None:
    for stream in ("true", "false"):
        defaults = f'"model": "toy", "messages": [{{"role": "user", "content": "hi"}}], "stream": {stream}'
        body = f"{{{defaults}, {field}}}".encode()
        reply = await gateway.client.post("/v1/chat/completions", content=body, headers=JSON)
        error = reply.json()["error"]
        assert (reply.status_code, error["type"], error["param"]) == (400, "invalid_request_error", param)
        assert error["message"]


async def test_an_unknown_model_is_answered_with_the_known_ones(gateway: Gateway) -> None:
    assert "toy, toy-alias" in (await gateway.post(model="gpt-5")).json()["error"]["message"]
    assert (await gateway.post(model="toy-alias", max_tokens=1)).json()["model"] == "toy-alias"


@pytest.mark.parametrize("prompt", ["", " ", "\n", "é😀", "<|end|>"])
async def test_odd_prompts_are_answered(gateway: Gateway, prompt: str) -> None:
    assert (await gateway.post(prompt, max_tokens=2)).status_code == 200


async def test_a_large_body_is_refused_unread(gateway: Gateway) -> None:
    reply = await gateway.post("a" * 200_000)
    assert reply.status_code == 413
    assert reply.json()["error"]["type"] == "invalid_request_error"

    async def parts(count: int) -> Any:
        for _ in range(count):
            yield b" " * 1000
        raise AssertionError("read to the end")

    for count, headers in ((1000, {}), (0, {"Content-Length": "100001"}), (0, {"Content-Length": "9" * 5000})):
        reply = await gateway.client.post("/v1/chat/completions", content=parts(count), headers=JSON | headers)
        assert reply.status_code == 413


@pytest.mark.parametrize("kind", ["", "text/plain", "application/x-www-form-urlencoded", "application/jsonp"])
async def test_a_body_must_say_that_it_is_json(gateway: Gateway, kind: str) -> None:
    body = orjson.dumps({"model": "toy", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1})
    post = partial(gateway.client.post, "/v1/chat/completions", content=body)
    refused = await post(headers={"Content-Type": kind})
    assert (refused.status_code, refused.json()["error"]["type"]) == (415, "invalid_request_error")
    assert (await post(headers={"Content-Type": "Application/JSON; charset=utf-8"})).status_code == 200


async def test_a_body_that_does_not_come_is_not_waited_for(gateway: Gateway) -> None:
    async def stalled() -> Any:
        yield b"{"
        await asyncio.Event().wait()

    object.__setattr__(gateway.services.bodies, "seconds", 0.01)
    reply = await gateway.client.post("/v1/chat/completions", content=stalled(), headers=JSON)
    assert (reply.status_code, reply.json()["error"]["type"]) == (408, "invalid_request_error")
    assert gateway.services.capacity.in_hand == 0


async def test_messages_are_bounded_before_they_are_tokenised(gateway: Gateway) -> None:
    object.__setattr__(gateway.services.admission, "limits", PromptLimits(messages=3, characters=100))
    turns = [{"role": "user", "content": "hi"}] * 4
    long = [*turns[:2], {"role": "user", "content": "a" * 101}]
    for messages, param in ((turns, "messages"), (long, "messages[2].content")):
        reply = await gateway.post(messages=messages)
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)
    for body, param in (({"prompt": "a" * 101}, "prompt"), ({"messages": long}, "messages[2].content")):
        reply = await gateway.client.post("/tokenize", json=body)
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)


async def test_errors_quote_little_of_what_they_refuse(gateway: Gateway) -> None:
    for fields in ({"x" * 50_000: 1}, {"speculation": {"stopping": "x" * 50_000}}, {"model": "x" * 50_000}):
        reply = await gateway.post(**fields)
        assert 400 <= reply.status_code < 500
        assert len(reply.content) < 5_000


async def test_bodies_are_worked_on_beside_the_event_loop(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever takes as long as a body is long: parsing, rendering, tokenising."""
    loop_thread, threads = threading.get_ident(), set()
    for kind, name in ((ChatText, "encode"), (ChatText, "encode_text"), (ChatText, "decode"), (Admission, "admit")):
        original = getattr(kind, name)

        def watched(*args: Any, original: Any = original) -> Any:
            threads.add(threading.get_ident())
            return original(*args)

        monkeypatch.setattr(kind, name, watched)
    assert (await gateway.post(max_tokens=1)).status_code == 200
    for path, body in (("/tokenize", {"prompt": "hi"}), ("/detokenize", {"tokens": [5]})):
        assert (await gateway.client.post(path, json=body)).status_code == 200
    assert threads
    assert loop_thread not in threads


async def test_chunks_are_compact_json(gateway: Gateway) -> None:
    reply = await gateway.post(max_tokens=3, stream=True)
    for block in reply.text.split("\n\n")[:-2]:
        _, data = block.split("\ndata: ")
        assert orjson.dumps(orjson.loads(data)).decode() == data
