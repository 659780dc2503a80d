"""A real Prometheus for a test: its configuration, its process, its HTTP API."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import yaml

from adasd.cli.processes import Child, free_port

SCRAPE = "1s"


class Prometheus:
    """A running one. Every method asks its HTTP API."""

    def __init__(self, url: str) -> None:
        self._client = httpx.Client(base_url=url, timeout=10)

    def ask(self, path: str, **parameters: str) -> Any:
        """The data of an answer. Raises AssertionError with Prometheus' own words."""
        reply = self._client.get(f"/api/v1/{path}", params=parameters)
        assert reply.status_code == 200, f"{parameters}: {reply.text}"
        return reply.json()["data"]

    def values(self, query: str) -> list[float]:
        """The values that a query has now."""
        return [float(sample["value"][1]) for sample in self.ask("query", query=query)["result"]]

    def ready(self) -> bool:
        try:
            return self._client.get("/-/ready").status_code == 200
        except httpx.TransportError:
            return False

    def close(self) -> None:
        self._client.close()


@contextmanager
def prometheus(binary: str, folder: Path, rules: Path, targets: Mapping[str, str]) -> Iterator[Prometheus]:
    """Scrapes `targets` (host:port by job) every second; ready on entry, gone at the end."""
    config = folder / "prometheus.yml"
    jobs = [{"job_name": job, "static_configs": [{"targets": [address]}]} for job, address in targets.items()]
    every = {"scrape_interval": SCRAPE, "evaluation_interval": SCRAPE}
    config.write_text(yaml.safe_dump({"global": every, "rule_files": [str(rules)], "scrape_configs": jobs}))
    port = free_port()
    options = (
        f"--config.file={config}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    )
    child = Child("prometheus", [binary, *options], folder / "prometheus.log")
    child.log.touch()
    child.start()
    server = Prometheus(f"http://127.0.0.1:{port}")
    try:
        yield server
    finally:
        server.close()
        child.stop()
