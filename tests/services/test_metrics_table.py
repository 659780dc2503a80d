"""docs/metrics.md is what the code defines."""

from __future__ import annotations

from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest

from services.gateway.metrics import GatewayMetrics
from services.metrics_table import metrics, table

DOCUMENT = Path(__file__).parents[2] / "docs" / "metrics.md"


def test_the_document_is_the_codes_own_table() -> None:
    assert DOCUMENT.read_text() == table(), "run `python -m services.metrics_table > docs/metrics.md`"


def test_series_are_named_as_they_are_exposed() -> None:
    registry = CollectorRegistry()
    GatewayMetrics(registry)
    exposed = {line.split()[2] for line in generate_latest(registry).decode().splitlines() if line.startswith("# TYPE")}
    listed = {name for metric in metrics() for name in (metric.name, *metric.series)}
    assert {name for name in exposed if not name.endswith("_created")} <= listed
    assert all(metric.meaning for metric in metrics())
