"""Dashboards and rules against the metrics that the code defines; no Prometheus needed."""

from __future__ import annotations

import json

import pytest

from deploy.grafana.dashboards import DASHBOARDS
from deploy.grafana.panels import text
from services.metrics_table import metrics
from tests.deploy.queries import DEPLOY, alerts, labels, names, panels, records

TARGET_LABELS = {"job", "instance", "le"}
EXPORTER_LABELS = {"cmd"}
EVERYTHING = [*panels(), *alerts(), *records()]


def test_the_json_is_what_the_code_of_the_dashboards_writes() -> None:
    written = {path.stem: path.read_text() for path in (DEPLOY / "grafana" / "dashboards").glob("*.json")}
    assert written == {name: text(name, panels) for name, panels in DASHBOARDS.items()}


@pytest.mark.parametrize(("where", "query"), EVERYTHING, ids=[where for where, _ in EVERYTHING])
def test_every_query_reads_series_and_labels_that_exist(where: str, query: str) -> None:
    labels_of = {series: metric.labels for metric in metrics() for series in metric.series}
    read = {name for name in names(query) if not name.startswith(("redis_", "up"))}
    assert names(query), where
    assert read <= labels_of.keys() | {name for name, _ in records()}, where
    known = {label for name in read for label in labels_of.get(name, ())}
    assert labels(query) <= known | TARGET_LABELS | EXPORTER_LABELS, where


def test_panels_do_not_overlap_and_every_metric_of_speculation_has_one() -> None:
    for path in (DEPLOY / "grafana" / "dashboards").glob("*.json"):
        cells = [
            (x, y)
            for place in (panel["gridPos"] for panel in json.loads(path.read_text())["panels"])
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        ]
        assert len(cells) == len(set(cells)), path.name
    shown = set().union(*(names(query) for _, query in (*panels(), *records())))
    speculation = [metric for metric in metrics() if metric.name.startswith("adasd_spec_decode")]
    assert [metric.name for metric in speculation if not shown & set(metric.series)] == []


def test_every_alert_has_its_paragraph() -> None:
    document = (DEPLOY.parent / "docs" / "operate.md").read_text()
    assert [name for name, _ in alerts() if f"### {name}\n" not in document] == []
