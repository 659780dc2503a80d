"""What Prometheus sees of a running stack: `python deploy/observe.py` starts both, chats, and draws the dashboards.

Needs `prometheus` on the PATH. Panels and queries are read from the dashboards' JSON; the drawings are SVG.
"""

from __future__ import annotations

import argparse
import html
import json
import math
import re
import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

from adasd.cli.processes import Child, free_port
from adasd.cli.stack import Stack
from adasd.cli.up import stack_options
from adasd.core.errors import AdasdError, ServiceUnavailable

FOLDER = Path(__file__).parent
RULES = FOLDER / "prometheus" / "rules.yml"
DASHBOARDS = FOLDER / "grafana" / "dashboards"
READY_SECONDS = 60.0
RATE_WINDOW = "30s"
CONFIG = """\
global: {{scrape_interval: 1s, evaluation_interval: 1s}}
rule_files: [{rules}]
scrape_configs:
"""
JOB = "  - {{job_name: {job}, static_configs: [{{targets: ['{address}']}}]}}\n"
METHODS = [
    (stopping, acceptance) for stopping in ("adasd", "fixed") for acceptance in ("adasd-anchored", "exact", "adasd")
]
QUESTIONS = (
    "Why is the sky blue?",
    "Write a short story about a lighthouse.",
    "What is 12 times 12?",
    "Name five rivers.",
)
_LABEL = re.compile(r"\{\{(\w+)\}\}")
COLUMN, ROW, MARGIN = 50, 30, 8
COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#ff7f0e", "#9467bd", "#8c564b", "#17becf", "#7f7f7f", "#bcbd22", "#e377c2")


class Prometheus:
    """A running one; every method asks its HTTP API."""

    def __init__(self, url: str) -> None:
        self._client = httpx.Client(base_url=url, timeout=10)

    def ask(self, path: str, **parameters: str | float) -> Any:
        """The data of an answer. Raises ServiceUnavailable with Prometheus' own words."""
        reply = self._client.get(f"/api/v1/{path}", params=parameters)
        if reply.status_code != 200:
            raise ServiceUnavailable(f"{parameters}: {reply.text}")
        return reply.json()["data"]

    def values(self, query: str) -> list[float]:
        """The values that a query has now."""
        return [float(sample["value"][1]) for sample in self.ask("query", query=query)["result"]]

    def wait_ready(self) -> None:
        deadline = time.monotonic() + READY_SECONDS
        while not self._ready():
            if time.monotonic() > deadline:
                raise ServiceUnavailable(f"Prometheus is not ready after {READY_SECONDS:g} s")
            time.sleep(0.1)

    def _ready(self) -> bool:
        try:
            return self._client.get("/-/ready").status_code == 200
        except httpx.TransportError:
            return False

    def close(self) -> None:
        self._client.close()


@contextmanager
def prometheus(folder: Path, targets: Mapping[str, str]) -> Iterator[Prometheus]:
    """One that scrapes `targets` (host:port by job) every second; ready on entry, gone at the end.

    folder: for its data and its log. Raises ServiceUnavailable if it is not installed or does not start.
    """
    binary = shutil.which("prometheus")
    if binary is None:
        raise ServiceUnavailable("prometheus is not on the PATH (Debian: apt-get install prometheus)")
    jobs = "".join(JOB.format(job=job, address=address) for job, address in targets.items())
    config, address = folder / "prometheus.yml", f"127.0.0.1:{free_port()}"
    config.write_text(CONFIG.format(rules=RULES) + jobs)
    options = (f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}", f"--web.listen-address={address}")
    child = Child("prometheus", [binary, *options], folder / "prometheus.log")
    child.start()
    server = Prometheus(f"http://{address}")
    try:
        server.wait_ready()
        yield server
    finally:
        server.close()
        child.stop()


def targets(stack: Stack) -> dict[str, str]:
    """What to scrape of a stack: host:port by job."""
    return {job: urlsplit(url).netloc for job, url in ({"gateway": stack.url} | stack.metrics).items()}


def chat(url: str, model: str, number: int) -> None:
    """One answer, with the number's method and question."""
    stopping, acceptance = METHODS[number % len(METHODS)]
    body = {
        "model": model,
        "messages": [{"role": "user", "content": QUESTIONS[number % len(QUESTIONS)]}],
        "max_tokens": 60,
        "seed": number,
        "speculation": {"stopping": stopping, "acceptance": acceptance},
    }
    httpx.post(f"{url}/v1/chat/completions", json=body, timeout=300).raise_for_status()


def draw(server: Prometheus, dashboard: Path, since: float) -> str:
    """A dashboard's panels as SVG, from `since` (s, Unix time) until now."""
    panels = json.loads(dashboard.read_text())["panels"]
    drawn = "".join(_panel(server, panel, since) for panel in panels)
    height = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in panels) * ROW
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{24 * COLUMN}" height="{height}" font-family="sans-serif"'
        f' font-size="11"><rect width="100%" height="100%" fill="#eee"/>{drawn}</svg>\n'
    )


def _panel(server: Prometheus, panel: dict[str, Any], since: float) -> str:
    place = panel["gridPos"]
    x, y, width, height = place["x"] * COLUMN, place["y"] * ROW, place["w"] * COLUMN - 4, place["h"] * ROW - 4
    lines = [line for target in panel["targets"] for line in _lines(server, target, since)]
    content = _stat if panel["type"] == "stat" else _chart
    return (
        f'<g transform="translate({x} {y})"><rect width="{width}" height="{height}" fill="white"/>'
        f'<text x="{MARGIN}" y="16" font-weight="bold">{html.escape(panel["title"])}</text>'
        f"{content(lines, width, height)}</g>"
    )


Line = tuple[str, list[tuple[float, float]]]
"""A legend, and values by time."""


def _lines(server: Prometheus, target: dict[str, str], since: float) -> Iterator[Line]:
    query = target["expr"].replace("$__rate_interval", RATE_WINDOW)
    answer = server.ask("query_range", query=query, start=since, end=time.time(), step=1)
    for series in answer["result"]:
        points = [(float(at), float(value)) for at, value in series["values"]]
        drawn = [(at, value) for at, value in points if math.isfinite(value)]
        yield _legend(target["legendFormat"], series["metric"]), drawn


def _legend(template: str, labels: Mapping[str, str]) -> str:
    return _LABEL.sub(lambda name: labels.get(name[1], ""), template)


def _stat(lines: Sequence[Line], width: int, height: int) -> str:
    values = [points[-1][1] for _, points in lines if points]
    shown = f"{values[0]:.3g}" if values else "no data"
    return f'<text x="{width / 2}" y="{height * 0.7}" font-size="32" text-anchor="middle">{shown}</text>'


def _chart(lines: Sequence[Line], width: int, height: int) -> str:
    points = [point for _, line in lines for point in line]
    if not points:
        return f'<text x="{width / 2}" y="{height / 2}" text-anchor="middle">no data</text>'
    first, last = min(at for at, _ in points), max(at for at, _ in points)
    top = max(value for _, value in points) or 1.0
    left, plot, base = 45, width - 230, height - 20

    def position(at: float, value: float) -> str:
        return f"{left + plot * (at - first) / (last - first or 1):.1f},{base - (base - 30) * value / top:.1f}"

    parts = [f'<text x="4" y="34">{top:.3g}</text><text x="4" y="{base}">0</text>']
    for number, (legend, line) in enumerate(sorted(lines)):
        colour, drawn = COLOURS[number % len(COLOURS)], " ".join(position(*point) for point in line)
        parts.append(f'<polyline points="{drawn}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        shown = f"{html.escape(legend)} {line[-1][1]:.3g}" if line else html.escape(legend)
        parts.append(f'<text x="{left + plot + 10}" y="{34 + 13 * number}" fill="{colour}">{shown}</text>')
    return "".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", help="model folder or toy:...; the demo pair's if not given")
    parser.add_argument("--draft", help="the same for the draft")
    parser.add_argument("--chats", type=int, default=10)
    parser.add_argument("--out", type=Path, default=Path("out/observe"), help="folder for drawings and logs")
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    try:
        options = stack_options(
            asked.target, asked.draft, "observed", host="127.0.0.1", port=0, redis_url=None, logs=asked.out
        )
        with Stack(options) as stack, prometheus(asked.out, targets(stack)) as server:
            stack.wait_ready(600)
            since = time.time()
            for number in range(asked.chats):
                chat(stack.url, options.model_name, number)
            for dashboard in sorted(DASHBOARDS.glob("*.json")):
                drawing = asked.out / f"{dashboard.stem}.svg"
                drawing.write_text(draw(server, dashboard, since))
                print(drawing)
    except AdasdError as error:
        sys.exit(f"observe: {error}")


if __name__ == "__main__":
    main()
