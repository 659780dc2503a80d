"""Whether there are traces, what they cost where there are none, and what they may never do."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tracemalloc
from collections import Counter
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from adasd.core.adaptive import AcceptanceState
from adasd.core.context import Context
from adasd.core.errors import InvalidRequest
from adasd.core.types import Draft
from services.gateway.remote_verifier import VerifierClient
from services.gateway.round_times import RoundTimes
from services.gateway.traces import MAX_TRACESTATE, TracedRequests, script_spans
from services.telemetry import CountedExporter, Outlet, SdkSpan, Telemetry
from services.tracing import (
    FIRST_ROUNDS,
    NO_SPAN,
    OFF,
    TRACEPARENT,
    Fate,
    Tracing,
    TracingSettings,
    asking,
    shown,
    start_tracing,
)
from tests.services.collector import Collector, collecting
from tests.services.replicas import PROMPT, SAMPLING, Running, new_session, running
from tests.services.test_remote_verifier import options

NOWHERE = "http://127.0.0.1:9"
STANDARD = "OTEL_EXPORTER_OTLP_ENDPOINT"
VERIFY = "adasd.rpc.v1.Verifier/Verify"


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as collector:
        yield collector


@contextmanager
def telemetry(endpoint: str, counts: Counter[str] | None = None, service: str = "gateway") -> Iterator[Tracing]:
    counts = Counter() if counts is None else counts
    tracing = start_tracing(TracingSettings(endpoint), service, lambda fate, count: counts.update({fate: count}))
    assert tracing is not OFF
    try:
        yield tracing
    finally:
        tracing.close()


async def closed(tracing: Tracing) -> None:
    """Everything is sent."""
    await asyncio.to_thread(tracing.close)


def test_a_thousand_rounds_show_64_and_a_new_stream_its_first() -> None:
    assert [number for number in range(40) if shown(number, number)] == [*range(16), *range(16, 32, 2), 32, 36]
    assert sum(shown(number, number) for number in range(1000)) == 64
    assert all(shown(1001, here) for here in range(FIRST_ROUNDS))
    assert not shown(1001, FIRST_ROUNDS)
    numbers = range(1001, 9001)
    assert sum(shown(number, number, 3) for number in numbers[::3]) == sum(shown(number, number) for number in numbers)


@pytest.mark.parametrize(
    ("settings", "environment", "asked"),
    [
        (TracingSettings(), {}, None),
        (TracingSettings(NOWHERE), {}, "ADASD_DRAFTER_TRACING__ENDPOINT"),
        (TracingSettings(), {STANDARD: NOWHERE}, STANDARD),
        (TracingSettings(), {STANDARD: ""}, None),
        (TracingSettings(ratio=0.5), {}, None),
        (TracingSettings(NOWHERE), {"OTEL_SDK_DISABLED": "true"}, None),
        (TracingSettings(), {STANDARD: NOWHERE, "OTEL_TRACES_EXPORTER": "none"}, None),
    ],
)
def test_who_asks_for_traces(settings: TracingSettings, environment: dict[str, str], asked: str | None) -> None:
    assert asking(settings, "drafter", environment) == asked


def never(fate: Fate, count: int) -> None:
    raise AssertionError((fate, count))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf"),
        ("OTEL_TRACES_EXPORTER", "zipkin"),
        ("OTEL_BSP_MAX_QUEUE_SIZE", "many"),
    ],
)
def test_variables_that_cannot_be_honoured_are_refused(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(InvalidRequest, match=value):
        start_tracing(TracingSettings(NOWHERE), "gateway", never)


@pytest.mark.parametrize(("field", "value"), [("endpoint", "collector:4317"), ("ratio", 1.5)])
def test_settings_are_checked(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=field):
        TracingSettings(**{field: value})


PROGRAM = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.startswith({hidden}):
            raise ModuleNotFoundError(name, name=name)
sys.meta_path.insert(0, Missing())
from services.{service} import __main__ as program
assert not any(name.startswith(("services.telemetry", *{hidden})) for name in sys.modules), "imported"
{call}
"""
HIDDEN = {"gateway": ("opentelemetry.sdk", "opentelemetry.exporter", "opentelemetry.proto")}
"""Of the library; FastAPI itself needs its interface."""
CALLS = {
    "gateway": "program.main()",
    "drafter": "program.run(program.DrafterSettings, 'drafter', program.offering)",
    "verifier": "program.run(program.VerifierSettings, 'verifier', program.offering)",
}
REQUIRED = {
    "ADASD_GATEWAY_DRAFTER": "127.0.0.1:1",
    "ADASD_GATEWAY_VERIFIER": "127.0.0.1:1",
    "ADASD_GATEWAY_REDIS_URL": "unix:///nowhere",
    "ADASD_GATEWAY_TOKENIZER": "/nowhere",
    "ADASD_DRAFTER_MODEL": "toy:",
    "ADASD_VERIFIER_MODEL": "toy:",
}


@pytest.mark.parametrize("service", CALLS)
def test_without_the_library_services_run_untraced_and_refuse_to_trace(service: str) -> None:
    variable = {f"ADASD_{service.upper()}_TRACING__ENDPOINT": NOWHERE}
    hidden = HIDDEN.get(service, ("opentelemetry",))
    program = PROGRAM.format(service=service, hidden=hidden, call=CALLS[service])
    environment = {**os.environ, **REQUIRED, **variable}
    refused = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert refused.returncode == 1
    (last,) = refused.stderr.splitlines()[-1:]
    assert f"ADASD_{service.upper()}_TRACING__ENDPOINT" in last
    assert "pip install 'adasd-serving[tracing]'" in last


def test_untraced_rounds_leave_nothing_behind() -> None:
    times, around = RoundTimes(0.0), script_spans(OFF)
    step: Any = SimpleNamespace(number=0)

    def rounds(count: int) -> None:
        for _ in range(count):
            with times.step("commit", 0), around("commit"), OFF.span("x") as span:
                assert span is NO_SPAN
            times.committed(step)

    rounds(10)
    tracemalloc.start()
    before = tracemalloc.take_snapshot()
    rounds(1000)
    after = tracemalloc.take_snapshot()
    tracemalloc.stop()
    ours = [tracemalloc.Filter(True, f"*services/{name}") for name in ("tracing.py", "gateway/*.py")]
    assert sum(difference.count_diff for difference in after.filter_traces(ours).compare_to(before, "filename")) < 10


async def test_a_wrong_endpoint_blocks_nobody_and_its_spans_are_counted() -> None:
    counts: Counter[str] = Counter()
    with telemetry(NOWHERE, counts) as tracing:
        for _ in range(5):
            tracing.span("x").end()
    assert counts == {"failed": 5}


def test_what_finds_no_room_is_dropped_and_counted(collector: Collector) -> None:
    counts: Counter[str] = Counter()

    def count(fate: Fate, spans: int) -> None:
        counts[fate] += spans

    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace import TracerProvider

    outlet = Outlet(CountedExporter(OTLPSpanExporter(collector.endpoint), count), 600, count)
    tracing = Telemetry(TracerProvider(shutdown_on_exit=False), outlet)
    outlet._batch_processor._export_lock.acquire()  # nothing is sent for now
    for _ in range(700):
        tracing.span("x").end()
    outlet._batch_processor._export_lock.release()
    tracing.close()
    assert counts == {"sent": 600, "dropped": 100}
    assert len(collector.spans) == 600


def test_faults_of_the_library_stay_inside(collector: Collector) -> None:
    class Broken:
        def __getattr__(self, name: str) -> Any:
            raise RuntimeError(name)

    with SdkSpan(Broken()) as span:  # type: ignore[arg-type]
        span.note({"a": 1})
        span.rename("x")
        span.link("nonsense")
        span.fail("x")
    with telemetry(collector.endpoint) as tracing:
        tracing._tracer = Broken()  # type: ignore[attr-defined]
        assert tracing.span("x") is NO_SPAN


async def test_oversized_state_of_a_client_is_not_passed_on(collector: Collector) -> None:
    seen: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(dict(tracing.here.headers or ()))

    with telemetry(collector.endpoint) as tracing:
        for state in ("a=b", "a=" + "b" * 200 + ",c=" + "d" * 200 + ",e=" + "f" * 200):
            headers = [
                (b"traceparent", b"00-" + b"a" * 32 + b"-" + b"b" * 16 + b"-01"),
                (b"tracestate", state.encode()),
            ]
            scope = {"type": "http", "method": "GET", "path": "/x", "headers": headers}
            await TracedRequests(app, tracing)(scope, None, None)  # type: ignore[arg-type]
    assert [one.get("tracestate") for one in seen] == ["a=b", None]
    assert len(state) > MAX_TRACESTATE
    assert all(one[TRACEPARENT].startswith("00-" + "a" * 32) for one in seen)


async def test_ratio_decides_for_traces_that_begin_here(collector: Collector) -> None:
    tracing = start_tracing(TracingSettings(collector.endpoint, 0.0), "gateway", lambda *_: None)
    with tracing.span("mine") as span:
        assert tracing.traceparent is None
        flags = dict(span.headers or ())[TRACEPARENT].rpartition("-")[2]
        assert int(flags, 16) & 1 == 0, "others are told not to keep theirs"
    tracing.span("theirs", parent={TRACEPARENT: f"00-{'a' * 32}-{'b' * 16}-01"}).end()
    await closed(tracing)
    assert [span.name for span in collector.spans] == ["theirs"]


def traced_by(tracing: Tracing) -> Any:
    """A verifier whose spans go there."""
    return running("verifier", tracing=tracing)


async def test_a_round_that_moves_to_another_replica_stays_in_its_trace(collector: Collector) -> None:
    with telemetry(collector.endpoint) as tracing, telemetry(collector.endpoint, service="verifier") as theirs:
        async with AsyncExitStack() as first, traced_by(theirs) as second:
            gone: Running = await first.enter_async_context(traced_by(theirs))
            client = VerifierClient(options(gone.address, second.address), tracing=tracing)
            with tracing.span("answer") as answer:
                verifier, context = client.open(new_session(), SAMPLING, "exact"), Context(PROMPT)
                for number in range(2):
                    context.extend((await verifier.verify(context, Draft(), AcceptanceState(), number)).tokens)
                    await first.aclose()
                await verifier.close()
            await client.close()
        assert isinstance(answer, SdkSpan)
        await closed(tracing)
        await closed(theirs)
    calls = [span for span in collector.spans if (span.service, span.name) == ("adasd-gateway", VERIFY)]
    served = [span for span in collector.spans if (span.service, span.name) == ("adasd-verifier", VERIFY)]
    judged = [span for span in collector.spans if span.name == "verify"]
    assert len({span.trace for span in collector.spans}) == 1
    assert [call.attributes["server.port"] for call in calls] == [gone.port, second.port]
    assert calls[0].attributes["error.type"] == "ServiceUnavailable"
    assert {span.parent for span in served} == {call.id for call in calls}
    assert [span.attributes["adasd.round"] for span in judged] == [0, 1]
