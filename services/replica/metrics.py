"""Counters of a replica. Recording never raises into serving: a metric that fails is logged and forgotten."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial, wraps
from typing import Literal, ParamSpec

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from adasd.core.messages import Timing
from services.tracing import Fate

logger = logging.getLogger(__name__)

P = ParamSpec("P")

ServiceName = Literal["drafter", "verifier"]

BATCH_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256)

FORWARD_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Seconds: from a warm round on a small GPU to a cold prefill on a CPU."""


def harmless(record: Callable[P, None]) -> Callable[P, None]:
    """The same, without the exceptions."""

    @wraps(record)
    def recorded(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            record(*args, **kwargs)
        except Exception:
            logger.warning("a metric was not recorded", exc_info=True)

    return recorded


class ReplicaMetrics:
    """`adasd_<service>_*`; one registry a process.

    requests: streams opened. rounds: messages answered. candidates: drafted or judged. errors: by class of
    `adasd.core.errors`. forward_seconds, queue_seconds, rules_seconds: of a message, in the model's passes, waiting for
    them, and in sampling or judging. batch_size: messages in a pass. kv_positions: allocated after it. spans:
    by outcome. rounds_ahead: begun before they were asked for, by what became of them; of a verifier only.
    """

    def __init__(self, service: ServiceName, registry: CollectorRegistry) -> None:
        prefix = f"adasd_{service}"
        self._requests = Counter(f"{prefix}_requests", "Streams opened, one a generation.", registry=registry)
        self._rounds = Counter(f"{prefix}_rounds", "Rounds answered.", registry=registry)
        self._candidates = Counter(f"{prefix}_candidates", "Candidates in these rounds.", registry=registry)
        self._errors = Counter(f"{prefix}_errors", "Faults by class.", ["type"], registry=registry)
        self._inflight = Gauge(f"{prefix}_inflight_streams", "Streams open now.", registry=registry)
        seconds = partial(Histogram, registry=registry, buckets=FORWARD_BUCKETS)
        self._forward = seconds(f"{prefix}_forward_seconds", "A message's time in passes of the model.")
        self._queue = seconds(f"{prefix}_queue_seconds", "A message's wait for the device.")
        self._rules = seconds(f"{prefix}_rules_seconds", "A message's time in sampling or judging.")
        self._batch = Histogram(
            f"{prefix}_batch_size", "Messages in a pass of the model.", registry=registry, buckets=BATCH_BUCKETS
        )
        self._spans = Counter(
            f"{prefix}_spans", "Spans of traces, by what became of them.", ["outcome"], registry=registry
        )
        if service == "verifier":
            begun = "Rounds begun before they were asked for: asked for, or dropped."
            self._ahead = Counter(f"{prefix}_rounds_ahead", begun, ["outcome"], registry=registry)
        self._kv = Gauge(f"{prefix}_kv_positions", "Positions of KV allocated in all sessions.", registry=registry)

    @harmless
    def spans(self, outcome: Fate, count: int) -> None:
        self._spans.labels(outcome).inc(count)

    @contextmanager
    def stream(self) -> Iterator[None]:
        """Count a stream for as long as it lasts, and what ends it if that is an error."""
        self._opened()
        try:
            yield
        except Exception as error:
            self.failed(error)
            raise
        finally:
            self._closed()

    @harmless
    def _opened(self) -> None:
        self._requests.inc()
        self._inflight.inc()

    @harmless
    def _closed(self) -> None:
        self._inflight.dec()

    @harmless
    def answered(self, candidates: int, rounds: int = 1) -> None:
        self._rounds.inc(rounds)
        self._candidates.inc(candidates)

    @harmless
    def failed(self, error: Exception) -> None:
        self._errors.labels(type(error).__name__).inc()

    @harmless
    def begun_ahead(self, asked: bool) -> None:
        """A round was begun before it was asked for, and then was, or never will be."""
        self._ahead.labels("asked" if asked else "dropped").inc()

    @harmless
    def took(self, timing: Timing) -> None:
        self._forward.observe(timing.forward)
        self._queue.observe(timing.queue)
        self._rules.observe(timing.rules)

    @harmless
    def stepped(self, messages: int, positions: int) -> None:
        if messages:
            self._batch.observe(messages)
        self._kv.set(positions)
