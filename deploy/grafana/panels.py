"""What a dashboard is made of, and how Grafana is told."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

SOURCE = {"type": "prometheus", "uid": "${source}"}
COLUMNS = 24


@dataclass(frozen=True, slots=True)
class Panel:
    """queries: legend and PromQL. width: of 24 columns. kind: Grafana's name of the visualization."""

    title: str
    unit: str
    queries: Mapping[str, str]
    kind: str = "timeseries"
    width: int = 12
    height: int = 8
    note: str = ""
    stacked: bool = False


def rate(metric: str, by: str = "") -> str:
    grouping = f" by ({by})" if by else ""
    return f"sum{grouping} (rate({metric}[$__rate_interval]))"


def ratio(above: str, below: str, by: str = "") -> str:
    return f"{rate(above, by)} / {rate(below, by)}"


def by_method(above: str, below: str, prefix: str = "") -> dict[str, str]:
    return {"{{stopping}} / {{acceptance}}": prefix + ratio(above, below, "stopping, acceptance")}


def quantiles(histogram: str, *shares: float) -> dict[str, str]:
    buckets = rate(f"{histogram}_bucket", "le")
    return {f"p{share * 100:g}": f"histogram_quantile({share}, {buckets})" for share in shares}


def stat(title: str, unit: str, query: str, note: str = "") -> Panel:
    return Panel(title, unit, {"": query}, "stat", width=6, height=4, note=note)


def dashboard(name: str, panels: Sequence[Panel]) -> dict[str, Any]:
    return {
        "uid": f"adasd-{name}",
        "title": f"AdaSD: {name.replace('-', ' ')}".replace("redis", "Redis"),
        "tags": ["adasd"],
        "schemaVersion": 39,
        "editable": False,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {
            "list": [{"name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus"}]
        },
        "panels": [
            _panel(number, panel, position)
            for number, (panel, position) in enumerate(zip(panels, _positions(panels), strict=True), 1)
        ],
    }


def _positions(panels: Sequence[Panel]) -> Iterator[dict[str, int]]:
    """From left to right, then the next row."""
    x = y = 0
    for panel in panels:
        if x + panel.width > COLUMNS:
            raise ValueError(f"{panel.title}: a row is {COLUMNS} columns wide")
        yield {"x": x, "y": y, "w": panel.width, "h": panel.height}
        x += panel.width
        if x == COLUMNS:
            x, y = 0, y + panel.height


def _panel(number: int, panel: Panel, position: dict[str, int]) -> dict[str, Any]:
    targets = [
        {"refId": chr(ord("A") + index), "datasource": SOURCE, "expr": query, "legendFormat": legend}
        for index, (legend, query) in enumerate(panel.queries.items())
    ]
    drawn = {"fillOpacity": 40, "stacking": {"mode": "normal"}} if panel.stacked else {"fillOpacity": 5}
    custom = {"custom": drawn} if panel.kind == "timeseries" else {}
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.note,
        "datasource": SOURCE,
        "gridPos": position,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0, **custom}, "overrides": []},
        "targets": targets,
    }


def text(name: str, panels: Sequence[Panel]) -> str:
    """The JSON of one dashboard."""
    return json.dumps(dashboard(name, panels), indent=1) + "\n"
