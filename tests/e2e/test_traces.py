"""One request, one trace: real services, a real Redis, and a collector that keeps what it is sent."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from adasd.cli.stack import Stack, StackOptions
from services.gateway.keys import key_line, new_key
from services.tracing import FIRST_ROUNDS, shown
from tests.e2e.conftest import DRAFTS, TOY
from tests.services.collector import Collector, Exported, collecting

SERVICES = ("gateway", "drafter", "verifier")
SECRET = "swordfish"
PROPOSE, VERIFY = "adasd.rpc.v1.Drafter/Propose", "adasd.rpc.v1.Verifier/Verify"
SERVER, CLIENT = 2, 3
TO_THE_LIMIT = {"logit_bias": {"0": -100}}
"""No EOS: long enough for a drafter to be asked."""


class Traced:
    """A stack whose services send their spans to a collector."""

    def __init__(self, stack: Stack, collector: Collector, key: str, keys: dict[str, str]) -> None:
        self.stack = stack
        self.collector = collector
        self.key = key
        self.client = httpx.Client(base_url=stack.url, timeout=120, headers={"Authorization": f"Bearer {key}"})
        self.settings = keys

    def ask(self, trace: str = "", **fields: object) -> tuple[str, httpx.Response]:
        """A request within a client's own trace."""
        trace = trace or secrets.token_hex(16)
        headers = {"traceparent": f"00-{trace}-{'ab' * 8}-01", "x-request-id": f"req-{trace[:8]}"}
        body = {
            "model": "test",
            "messages": [{"role": "user", "content": SECRET}],
            "stop": [f"{SECRET}!"],
            "speculation": {"stopping": "fixed"},  # the drafter takes part, whatever candidates cost here
            **TO_THE_LIMIT,
            **fields,
        }
        return trace, self.client.post("/v1/chat/completions", json=body, headers=headers)

    def whole(self, trace: str) -> list[Exported]:
        """All spans of a request that has been answered: the replicas' streams end last."""
        ends = [("adasd-drafter", PROPOSE), ("adasd-verifier", VERIFY), ("adasd-gateway", "POST /v1/chat/completions")]
        return self.collector.trace(trace, lambda found: {*ends} <= {(span.service, span.name) for span in found})

    def log(self, service: str) -> str:
        return self.stack.children[service].log.read_text()


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory, redis_url: str, toy_tokenizer: Path) -> Iterator[Traced]:
    with pytest.MonkeyPatch.context() as patch, collecting() as collector:
        patch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
        key = new_key()
        settings = {f"ADASD_{name.upper()}_TRACING__ENDPOINT": collector.endpoint for name in SERVICES}
        settings["ADASD_GATEWAY_KEYS"] = key_line("alice", key)
        options = StackOptions(
            draft=DRAFTS["between"],
            target=TOY,
            tokenizer=toy_tokenizer,
            model_name="test",
            logs=tmp_path_factory.mktemp("traced") / "logs",
            port=0,
            redis_url=redis_url,
            environment=settings,
        )
        with Stack(options) as stack:
            stack.wait_ready(120)
            traced = Traced(stack, collector, key, settings)
            yield traced
            traced.client.close()


def named(spans: list[Exported], name: str, service: str = "adasd-gateway") -> Exported:
    (found,) = [span for span in spans if (span.service, span.name) == (service, name)]
    return found


def children(spans: list[Exported], parent: Exported) -> list[Exported]:
    return sorted((span for span in spans if span.parent == parent.id), key=lambda span: span.begin)


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_is_one_trace_through_all_services(traced: Traced, stream: bool) -> None:
    trace, reply = traced.ask(stream=stream, max_tokens=40, stream_options={"include_usage": True} if stream else None)
    assert reply.status_code == 200
    spans = traced.whole(trace)
    request = named(spans, "POST /v1/chat/completions")
    assert request.parent == "ab" * 8, "the client's own span"
    assert request.kind == SERVER
    assert request.attributes["http.response.status_code"] == 200
    assert request.attributes["http.response.header.x-request-id"] == [f"req-{trace[:8]}"]
    answer = named(spans, "chat test")
    assert [span.name for span in children(spans, request)] == ["read body", "tokenise", "chat test"]
    assert answer.attributes["gen_ai.usage.output_tokens"] == 40
    assert answer.attributes["gen_ai.usage.input_tokens"] > 0
    assert answer.attributes["gen_ai.response.finish_reasons"] == ["length"]
    inside = children(spans, answer)
    rounds = [span for span in inside if span.name in ("prefill", "round")]
    assert [span.name for span in rounds] == ["prefill", *["round"] * (len(rounds) - 1)]
    assert [span.attributes["adasd.round"] for span in rounds] == [
        number for number in range(int(answer.attributes["adasd.rounds"])) if shown(number, number)
    ]
    for each in rounds:
        steps = [step.name for step in children(spans, each)]
        assert steps in (["verify", "EVALSHA commit"], ["draft", "verify", "EVALSHA commit"])
    assert named(spans, "EVALSHA create").parent == answer.id
    for service, method, step in (("adasd-drafter", PROPOSE, "draft"), ("adasd-verifier", VERIFY, "verify")):
        call, served = named(spans, method), named(spans, method, service)
        assert (call.parent, call.kind) == (answer.id, CLIENT)
        assert (served.parent, served.kind) == (call.id, SERVER)
        messages = children(spans, served)
        assert {message.name for message in messages} == {step}
        assert messages[0].attributes["adasd.forwards"] > 0
    judged = [span for span in spans if (span.service, span.name) == ("adasd-verifier", "verify")]
    assert [span.attributes["adasd.round"] for span in judged] == [span.attributes["adasd.round"] for span in rounds]
    ids = {span.id for span in spans}
    assert all(span.parent in ids for span in spans if span is not request)


def test_a_long_answer_makes_few_spans(traced: Traced) -> None:
    fields = {"max_tokens": 240, "speculation": {"stopping": "off"}}
    trace, reply = traced.ask(**fields)
    tokens = reply.json()["usage"]["completion_tokens"]
    ends = {("adasd-verifier", VERIFY), ("adasd-gateway", "POST /v1/chat/completions")}
    spans = traced.collector.trace(trace, lambda found: ends <= {(span.service, span.name) for span in found})
    answer = named(spans, "chat test")
    assert answer.attributes["adasd.rounds"] == tokens == 240
    assert answer.attributes["adasd.verify_seconds"] > answer.attributes["adasd.network_seconds"] > 0
    rounds = sum(span.name in ("prefill", "round") for span in spans)
    single = sum(shown(number, number) for number in range(tokens))
    assert FIRST_ROUNDS <= rounds <= single < 48, "fewer where several are taken at once"
    assert len(spans) < 5 * rounds


def test_neither_text_nor_keys_nor_sessions_leave_the_services(traced: Traced) -> None:
    trace, reply = traced.ask(max_tokens=20)
    refused = traced.client.post(
        f"/v1/{SECRET}?key={traced.key}", headers={"Authorization": f"Bearer {SECRET}", "user-agent": SECRET}
    )
    wrong = traced.client.post("/v1/chat/completions", json={"model": SECRET, "messages": SECRET})
    assert (refused.status_code, wrong.status_code) == (401, 400)
    session = reply.headers["x-session-id"]
    looked = traced.client.get(f"/v1/sessions/{session}", headers={"traceparent": f"00-{trace}-{'cd' * 8}-01"})
    assert looked.status_code == 200
    spans = traced.collector.trace(
        trace, lambda found: {"GET /v1/sessions/{session}", "EVALSHA load"} <= {s.name for s in found}
    )
    assert named(spans, "EVALSHA load").parent == named(spans, "GET /v1/sessions/{session}").id
    traced.whole(trace)
    sent = traced.collector.raw
    answer = reply.json()["choices"][0]["message"]["content"]
    for hidden in (SECRET, traced.key, session, answer, traced.settings["ADASD_GATEWAY_KEYS"].split(":")[1]):
        assert hidden.encode() not in sent


def test_logs_name_the_trace(traced: Traced) -> None:
    trace, _ = traced.ask(max_tokens=20)
    traced.whole(trace)
    assert f"[req-{trace[:8]} {trace}] POST /v1/chat/completions by alice: 200" in traced.log("gateway")


def test_probes_begin_no_traces_and_all_spans_are_counted(traced: Traced) -> None:
    trace, _ = traced.ask(max_tokens=20)
    traced.whole(trace)
    assert not [span for span in traced.collector.spans if "PING" in span.name or "readyz" in span.name]
    for url, service in ((f"{traced.stack.url}/metrics", "gateway"), (traced.stack.metrics["verifier"], "verifier")):
        lines = httpx.get(url).text.splitlines()
        counts = {
            line.split()[0]: float(line.split()[1]) for line in lines if line.startswith(f"adasd_{service}_spans_total")
        }
        assert counts.keys() == {f'adasd_{service}_spans_total{{outcome="sent"}}'}


def test_a_collector_that_is_away_costs_nothing_but_spans(traced: Traced) -> None:
    traced.collector.refusing = True
    try:
        for stream in (False, True):
            _, reply = traced.ask(stream=stream, max_tokens=20)
            assert reply.status_code == 200
    finally:
        traced.collector.refusing = False
    trace, _ = traced.ask(max_tokens=20)
    assert traced.whole(trace)
