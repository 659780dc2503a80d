"""What a session keeps, and what it begins anew, when it meets another gateway or another client."""

from __future__ import annotations

from dataclasses import replace

import orjson
import pytest

from adasd.core.costs import NOMINAL
from adasd.core.metering import Observation
from adasd.core.stopping import stopping_rule
from adasd.core.types import Processing, SamplingParams
from services.gateway.costs import LiveCosts
from services.gateway.keys import KeyRing, key_line, new_key
from services.gateway.request import GenerationRequest
from services.gateway.rules import Rules
from services.gateway.security import Edge
from services.gateway.sessions import Presentation, Session
from services.gateway.text import ChatText
from tests.services.gateway.conftest import Gateway, gateway_of
from tests.services.gateway.resuming import RULES, handed_over, resume, streamed, told

TRACED = {"seed": 2, "speculation": {"stopping": "fixed", "max_candidates": 3, "trace": True}}


@pytest.mark.parametrize(("rule", "known"), [("off", "plain"), ("marginal", "unknown"), ("fixed", "unknown")])
def test_what_can_be_said_of_the_round_after_a_round(rule: str, known: str) -> None:
    asked = bytes(16), (1, 2, 3), SamplingParams(), stopping_rule(rule, None), "exact"
    generation = GenerationRequest(*asked, 9, 99, frozenset(), (), seeded=False)
    assert [generation.next_round(base) for base in (3, 10, 11)] == [known, known, "none"]


def test_a_record_holds_all_of_a_session() -> None:
    processing = Processing(logit_bias=((3, 1.5), (9, -2.0)), repetition_penalty=1.2, min_tokens=2, eos_ids=(0, 7))
    generation = GenerationRequest(
        session=bytes(16),
        prompt=(1, 2, 3),
        sampling=SamplingParams(temperature=0.5, seed=2**64 - 1, processing=processing, ignore_eos=True),
        stopping=stopping_rule("adasd", 4),
        acceptance="exact",
        max_tokens=9,
        context_length=99,
        eos_ids=frozenset({0, 7}),
        stop=("x", "yz"),
        seeded=True,
        copying=True,
    )
    more = "alice", 3.0, 2, "nominal1", f"00-{'a' * 32}-{'b' * 16}-01"
    session = Session(generation, Rules("adasd", "exact", 4), Presentation(model="m"), *more)
    record = session.record("here", 1, {})
    stored = replace(record, parameters=orjson.loads(orjson.dumps(record.parameters)))
    assert Session.of_record(stored, LiveCosts()) == session
    del stored.parameters["copying"]  # type: ignore[attr-defined]
    assert not Session.of_record(stored, LiveCosts()).generation.copying, "an earlier release's goes on as it began"


@pytest.fixture(autouse=True)
async def empty(gateway: Gateway) -> None:
    await gateway.store._client.flushall()


async def test_the_first_round_after_a_take_over_is_a_prefill(gateway: Gateway, other: Gateway) -> None:
    seen: list[Observation] = []
    other.services.engine.costs.add = seen.append  # type: ignore[method-assign]
    taken, _ = await handed_over(gateway, other, 2, **TRACED)
    assert len(seen) == taken.account["speculation"]["rounds"] - 2 - 1 > 0


async def test_times_are_those_of_the_stream_that_tells_them(gateway: Gateway, other: Gateway) -> None:
    taken, _ = await handed_over(gateway, other, 2, **TRACED)
    rounds = [chunk["adasd"]["timing"] for chunk in taken.data[:-1] if "adasd" in chunk]
    assert len(rounds) == taken.account["speculation"]["rounds"] - 2
    assert all([step["step"] for step in one["steps"]][-2:] == ["verify", "commit"] for one in rounds)
    begins = [0.0, *(stamp for one in rounds for stamp in (one["begin"], one["steps"][0]["begin"]))]
    ends = [one["end"] for one in rounds]
    assert (begins, ends) == (sorted(begins), sorted(ends))
    series = 'adasd_spec_decode_num_rounds_total{acceptance="adasd-anchored",stopping="fixed"}'
    assert await other.metric(series) == len(rounds)


async def test_a_text_that_depends_on_costs_is_refused_where_others_are_stated(
    gateway: Gateway, redis_url: str, toy_text: ChatText
) -> None:
    fields = RULES["weighed"]
    gateway.peers.failures[4] = RuntimeError("broken off")
    broken, greedy = await streamed(gateway, **fields), await streamed(gateway, temperature=0)
    gateway.peers.failures.clear()
    finished = await streamed(gateway, **fields)
    async with gateway_of(redis_url, toy_text, "changed", prior=replace(NOMINAL, version="other2")) as changed:
        reply = await resume(changed, broken.session)
        assert reply.status_code == 409
        assert "nominal1" in reply.json()["error"]["message"]
        assert "other2" in reply.json()["error"]["message"]
        assert told(await resume(changed, finished.session)).text == finished.text, "a finished text can be read"
        assert told(await resume(changed, greedy.session)).finish, "a text of the target's own goes on"
        assert (await changed.post(session=finished.session, max_tokens=3, **fields)).status_code == 200
    assert broken.text + told(await resume(gateway, broken.session, broken.names[-2])).text == finished.text


async def test_sessions_of_others_are_not_there(redis_url: str, toy_text: ChatText) -> None:
    keys = {name: new_key() for name in ("mine", "theirs")}
    ring = KeyRing(",".join(key_line(name, key) for name, key in keys.items()))
    mine, theirs = ({"Authorization": f"Bearer {key}"} for key in keys.values())
    body = {"model": "toy", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3, "ignore_eos": True}
    async with gateway_of(redis_url, toy_text, edge=Edge(ring)) as gateway:
        ask = gateway.client.post
        session = (await ask("/v1/chat/completions", json=body, headers=mine)).headers["x-session-id"]
        path = f"/v1/sessions/{session}"
        assert (await gateway.client.get(path, headers=mine)).json()["usage"]["completion_tokens"] == 3
        replies = [
            await gateway.client.get(path, headers=theirs),
            await gateway.client.delete(path, headers=theirs),
            await gateway.client.get(f"{path}/stream", headers=theirs),
            await ask("/v1/chat/completions", json={**body, "session": session}, headers=theirs),
        ]
        assert [(r.status_code, r.json()["error"]["code"]) for r in replies] == [(404, "session_not_found")] * 4
        for nonsense in ("x", "0" * 32, session.upper()[:-1] + "G"):
            assert (await gateway.client.get(f"/v1/sessions/{nonsense}", headers=mine)).status_code == 404
