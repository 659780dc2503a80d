"""Counters against the records that clients get, and counting that cannot hurt."""

from __future__ import annotations

from typing import Any

import pytest

from services.gateway.metrics import GatewayMetrics
from services.gateway.rules import Rules
from tests.services.gateway.conftest import Gateway

RECORDED = {
    "adasd_spec_decode_num_rounds_total": "rounds",
    "adasd_spec_decode_num_drafts_total": "drafts",
    "adasd_spec_decode_num_draft_tokens_total": "drafted",
    "adasd_spec_decode_num_accepted_tokens_total": "accepted",
    "adasd_spec_decode_num_relaxed_tokens_total": "relaxed",
    "adasd_spec_decode_num_floored_tokens_total": "floored",
}


async def test_counters_are_the_sums_of_all_records(gateway: Gateway) -> None:
    answers = []
    for seed, acceptance in enumerate(["exact", "adasd", "adasd-anchored", "coupled"] * 2):
        reply = await gateway.post(seed=seed, max_tokens=50, speculation={"acceptance": acceptance})
        answers.append(reply.json())
    for metric, name in RECORDED.items():
        assert await gateway.metric(metric) == sum(answer["speculation"][name] for answer in answers), metric
    assert await gateway.metric("adasd_spec_decode_num_relaxed_tokens_total") > 0
    exact = 'adasd_spec_decode_num_relaxed_tokens_total{acceptance="exact",stopping="adasd"}'
    assert await gateway.metric(exact) == 0
    generated = sum(answer["usage"]["completion_tokens"] for answer in answers)
    prompts = sum(answer["usage"]["prompt_tokens"] for answer in answers)
    assert await gateway.metric("adasd_gateway_generated_tokens_total") == generated
    assert await gateway.metric("adasd_gateway_prompt_tokens_total") == prompts
    assert await gateway.metric("adasd_gateway_time_to_first_token_seconds_count") == len(answers)


async def test_places_in_the_block_add_up_to_the_accepted(gateway: Gateway) -> None:
    for seed in range(4):
        await gateway.post(seed=seed, speculation={"stopping": "fixed", "max_candidates": 4})
    counts = [
        await gateway.metric(f'adasd_spec_decode_num_accepted_tokens_per_pos_total{{position="{place}"}}')
        for place in range(5)
    ]
    assert sum(counts) == await gateway.metric("adasd_spec_decode_num_accepted_tokens_total")
    assert counts == sorted(counts, reverse=True)
    assert counts[0] > 0
    assert counts[4] == 0


async def test_rounds_are_counted_by_their_rules(gateway: Gateway) -> None:
    asked = {"stopping": "fixed", "acceptance": "coupled"}
    record = (await gateway.post(seed=1, max_tokens=20, speculation=asked)).json()["speculation"]
    rounds = 'adasd_spec_decode_num_rounds_total{acceptance="coupled",stopping="fixed"}'
    assert (
        await gateway.metric(rounds) == record["rounds"] == await gateway.metric("adasd_spec_decode_num_rounds_total")
    )


async def test_steps_are_timed(gateway: Gateway) -> None:
    record = (await gateway.post(seed=1, max_tokens=30)).json()["speculation"]
    for step, count in (("verify", record["rounds"]), ("commit", record["rounds"]), ("draft", record["drafts"])):
        assert await gateway.metric(f"adasd_spec_decode_{step}_seconds_count") == count


async def test_a_broken_metric_costs_no_answer(gateway: Gateway, caplog: pytest.LogCaptureFixture) -> None:
    gateway.services.engine.metrics._rounds = None  # type: ignore[assignment]
    gateway.services.engine.metrics._requests.remove("nothing")
    assert (await gateway.post(max_tokens=5)).status_code == 200
    assert "metrics: round failed" in caplog.text


def test_whatever_is_broken_nothing_raises() -> None:
    metrics: Any = GatewayMetrics()
    for attribute in vars(metrics):
        setattr(metrics, attribute, None)
    metrics.describe({"model": "toy"})
    metrics.refused("Overloaded")
    metrics.finished("stop")
    metrics.error("Conflict")
    metrics.drafter_failed("InvalidDraft")
    metrics.inflight(1)
    metrics.admitted(3)
    metrics.first_token(0.1)
    metrics.tokens(2, 0.1)
    metrics.round(None, Rules())
    metrics.learned(None)
    metrics.took("draft", 0.1)


async def test_without_candidates_there_is_no_rate(gateway: Gateway) -> None:
    record = (await gateway.post(max_tokens=9, speculation={"stopping": "off"})).json()["speculation"]
    assert (record["drafted"], record["acceptance_rate"], record["mean_acceptance_length"]) == (0, None, 1.0)
    assert (record["threshold"], record["relaxed_loss_mean"], record["relaxed_loss_max"]) == (None, None, None)
