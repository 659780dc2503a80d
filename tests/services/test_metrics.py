"""Metrics of a replica: they count, and never raise."""

from __future__ import annotations

from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from adasd.core.errors import InvalidDraft
from services.replica.metrics import ReplicaMetrics


def test_a_stream_is_counted_while_it_lasts_and_so_is_what_ended_it() -> None:
    registry = CollectorRegistry()
    metrics = ReplicaMetrics("drafter", registry)
    with metrics.stream():
        assert registry.get_sample_value("adasd_drafter_inflight_streams") == 1
    with pytest.raises(InvalidDraft), metrics.stream():
        raise InvalidDraft("bad")
    assert registry.get_sample_value("adasd_drafter_inflight_streams") == 0
    assert registry.get_sample_value("adasd_drafter_requests_total") == 2
    assert registry.get_sample_value("adasd_drafter_errors_total", {"type": "InvalidDraft"}) == 1


def test_a_counter_never_goes_back() -> None:
    registry = CollectorRegistry()
    metrics = ReplicaMetrics("verifier", registry)
    metrics.answered(3)
    metrics.answered(-5)
    assert registry.get_sample_value("adasd_verifier_candidates_total") == 3
    assert registry.get_sample_value("adasd_verifier_rounds_total") == 2
    metrics.answered(0, 4)
    assert registry.get_sample_value("adasd_verifier_rounds_total") == 6


def test_a_metric_that_fails_does_not_fail_the_round(caplog: pytest.LogCaptureFixture) -> None:
    metrics: Any = ReplicaMetrics("drafter", CollectorRegistry())
    metrics._rounds = metrics._inflight = None
    metrics.answered(1)
    with metrics.stream():
        pass
    assert "a metric was not recorded" in caplog.text
