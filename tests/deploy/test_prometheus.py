"""Debian's Prometheus, where it is installed: the rules' own tests, and every query against the running services."""

from __future__ import annotations

import math
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from adasd.cli.processes import Child, free_port
from adasd.runtime.toy import ToySpec, write_toy_model
from deploy.observe import Prometheus, draw, prometheus, targets
from tests.deploy.queries import DEPLOY, alerts, names, panels, records
from tests.e2e.conftest import DRAFTS, TOY, Served, serve

PROMETHEUS, PROMTOOL = shutil.which("prometheus"), shutil.which("promtool")
EXPORTER = shutil.which("prometheus-redis-exporter")
needs_prometheus = pytest.mark.skipif(not PROMETHEUS, reason="no prometheus on the PATH (Debian: prometheus)")
needs_promtool = pytest.mark.skipif(not PROMTOOL, reason="no promtool on the PATH (Debian: prometheus)")
PATIENCE = 60.0
RULES = ["adasd adasd", "fixed exact", "adasd adasd-anchored", "fixed coupled", "marginal exact", "off exact"]
METHODS = [rules.split() for rules in RULES]
COMPARISON = re.compile(r" (<|>|==) ")


@needs_promtool
@pytest.mark.parametrize("arguments", ["check config prometheus.yml", "check rules rules.yml", "test rules tests.yml"])
def test_promtool(arguments: str) -> None:
    command = [str(PROMTOOL), *arguments.split()]
    done = subprocess.run(command, cwd=DEPLOY / "prometheus", capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, redis_url: str) -> Iterator[Served]:
    tokenizer = tmp_path_factory.mktemp("toy-tokenizer")
    write_toy_model(tokenizer, ToySpec.parse(TOY))
    yield from serve(tmp_path_factory.mktemp("scraped"), redis_url, DRAFTS["between"], TOY, tokenizer)


@pytest.fixture(scope="module")
def scraping(tmp_path_factory: pytest.TempPathFactory, served: Served) -> Iterator[Prometheus]:
    """Prometheus over a stack that has answered chats of all methods, good and bad, at several scrapes."""
    folder = tmp_path_factory.mktemp("prometheus")
    addresses = targets(served.stack)
    exporter = _redis_exporter(folder, served.redis_url)
    if exporter is not None:
        addresses["redis"] = exporter.name
        exporter.start()
    with prometheus(folder, addresses) as server:
        _chat_until_counted(server, served)
        yield server
    if exporter is not None:
        exporter.stop()


def _redis_exporter(folder: Path, redis_url: str) -> Child | None:
    """Named by its address."""
    if EXPORTER is None:
        return None
    address = f"127.0.0.1:{free_port()}"
    command = [EXPORTER, "-redis.addr", redis_url, "-web.listen-address", address]
    return Child(address, command, folder / "redis-exporter.log")


def _chat_until_counted(server: Prometheus, served: Served) -> None:
    """A rate needs a counter that has grown between two scrapes, and rules their evaluation after that."""
    deadline = time.monotonic() + PATIENCE
    seed = 0
    while time.monotonic() < deadline:
        for stopping, acceptance in METHODS:
            seed += 1
            rules = {"stopping": stopping, "acceptance": acceptance}
            served.answer(seed=seed, max_tokens=40, temperature=1.0, speculation=rules)
        assert served.post(temperature="hot").status_code == 400
        if seed > 10 * len(METHODS) and _defined(server.values("adasd:speculation_gain:5m")):
            return
        time.sleep(0.2)
    raise AssertionError(f"no ratio was recorded: {server.ask('targets')}")


def _defined(values: list[float]) -> bool:
    return bool(values) and not all(math.isnan(value) for value in values)


def _has_data(server: Prometheus, query: str) -> bool:
    if EXPORTER is None and any(name.startswith("redis_") for name in names(query)):
        server.values(query)  # an error is an error all the same
        return True
    return _defined(server.values(query))


@pytest.mark.slow
@needs_prometheus
def test_every_target_is_scraped(scraping: Prometheus) -> None:
    assert {target["health"] for target in scraping.ask("targets")["activeTargets"]} == {"up"}


@pytest.mark.slow
@needs_prometheus
def test_every_panel_has_data(scraping: Prometheus) -> None:
    asked = [(title, query.replace("$__rate_interval", "1m")) for title, query in panels()]
    assert len(asked) > 50
    assert [entry for entry in asked if not _has_data(scraping, entry[1])] == []


@pytest.mark.slow
@needs_prometheus
def test_a_dashboard_can_be_drawn(scraping: Prometheus) -> None:
    drawing = draw(scraping, DEPLOY / "grafana" / "dashboards" / "acceptance.json", time.time() - 10)
    assert "Acceptance rate by method" in drawing
    assert "no data" not in drawing
    assert "adasd / adasd-anchored" in drawing


@pytest.mark.slow
@needs_prometheus
def test_every_recorded_ratio_has_data(scraping: Prometheus) -> None:
    assert [name for name, _ in records() if not _has_data(scraping, name)] == []


@pytest.mark.slow
@needs_prometheus
def test_every_alert_is_evaluated_and_has_something_to_compare(scraping: Prometheus) -> None:
    loaded = scraping.ask("rules", type="alert")["groups"]
    healths = {rule["name"]: rule["health"] for group in loaded for rule in group["rules"]}
    assert healths.keys() == {name for name, _ in alerts()}
    assert set(healths.values()) == {"ok"}
    for name, query in alerts():
        compared = COMPARISON.sub(r" \1 bool ", query).replace("absent(", "count(")
        assert _has_data(scraping, compared), name
