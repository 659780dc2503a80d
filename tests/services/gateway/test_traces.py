"""Answers in their traces: taken over by other gateways, failing."""

from __future__ import annotations

import asyncio
import secrets

from adasd.core.errors import Conflict
from services.gateway.text import ChatText
from services.tracing import TRACEPARENT
from tests.services.collector import Collector
from tests.services.gateway.conftest import Gateway, gateway_of
from tests.services.gateway.test_resume import let_go, resume, running_session, streamed
from tests.services.test_tracing import closed, collector, telemetry

__all__ = ["collector"]


async def test_a_text_that_another_gateway_takes_over_stays_in_its_trace(
    collector: Collector, redis_url: str, toy_text: ChatText
) -> None:
    with telemetry(collector.endpoint) as tracing, telemetry(collector.endpoint, service="other") as theirs:
        async with (
            gateway_of(redis_url, toy_text, tracing=tracing) as gateway,
            gateway_of(redis_url, toy_text, "other", tracing=theirs) as other,
        ):
            await taken_over(gateway, other, trace := secrets.token_hex(16))
        await closed(tracing)
        await closed(theirs)
    (resumed,) = [span for span in collector.spans if span.name == "GET /v1/sessions/{session}/stream"]
    answers = {span.service: span for span in collector.spans if span.name == "chat toy"}
    assert {span.trace for span in answers.values()} == {trace}
    assert resumed.trace != trace
    assert resumed.links == (trace,)
    assert answers["adasd-other"].links == (resumed.trace,)
    assert answers["adasd-other"].attributes["adasd.rounds"] > 0
    assert {span.name for span in collector.spans if span.service == "adasd-other"} >= {
        "EVALSHA load", "EVALSHA take_over", "prefill", "EVALSHA commit"
    }  # fmt: skip


async def taken_over(gateway: Gateway, other: Gateway, trace: str) -> None:
    """A stream within a client's trace that another gateway goes on with after two rounds."""
    await gateway.store._client.flushall()
    gateway.peers.held = {2: asyncio.Event()}
    gateway.client.headers[TRACEPARENT] = f"00-{trace}-{'ab' * 8}-01"
    running_here = asyncio.create_task(streamed(gateway, seed=2))
    session = await running_session(gateway, 2)
    await let_go(gateway, session)
    assert (await resume(other, session)).status_code == 200
    gateway.peers.held[2].set()
    await running_here


async def test_a_request_that_fails_says_so_in_its_trace(
    collector: Collector, redis_url: str, toy_text: ChatText
) -> None:
    with telemetry(collector.endpoint) as tracing:
        async with gateway_of(redis_url, toy_text, tracing=tracing) as gateway:
            gateway.peers.failures[3] = Conflict("swordfish")
            gateway.peers.failures[1] = RuntimeError("swordfish")
            await gateway.post("hi", max_tokens=30, stream=True)
        await closed(tracing)
    failed = {span.name: span.attributes["error.type"] for span in collector.spans if span.failed}
    assert failed == {"chat toy": "RuntimeError", "round": "RuntimeError", "verify": "RuntimeError"}
    assert b"swordfish" not in collector.raw


async def test_choices_of_one_answer_share_its_trace(collector: Collector, redis_url: str, toy_text: ChatText) -> None:
    with telemetry(collector.endpoint) as tracing:
        async with gateway_of(redis_url, toy_text, tracing=tracing) as gateway:
            reply = await gateway.complete("hello", n=2, max_tokens=8)
            assert reply.status_code == 200
        await closed(tracing)
    (request,) = [span for span in collector.spans if span.name == "POST /v1/completions"]
    answers = [span for span in collector.spans if span.name == "text_completion toy"]
    assert sorted(span.attributes["adasd.choice"] for span in answers) == [0, 1]
    assert {span.parent for span in answers} == {request.id}
    assert {span.parent for span in collector.spans if span.name == "prefill"} == {span.id for span in answers}
    assert request.parent == "", "a trace of its own where the client names none"
