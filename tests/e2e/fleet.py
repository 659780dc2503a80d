"""Several processes of every service over one Redis, any of which a test may kill, pause, and start again."""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from adasd.cli.processes import Child, free_port
from adasd.state.embedded import EmbeddedRedis

GATEWAY = {
    "STORE__LEASE": "1",
    "PROBE_SECONDS": "0.2",
    "GRACE_SECONDS": "10",
    "RESUME_WAIT": "10",
    "STORE__REPLY_TIMEOUT": "1",
}


@dataclass
class Told:
    """What a client has been told so far, through however many connections."""

    session: str = ""
    position: str = ""
    text: str = ""
    finish: str | None = None
    usage: Any = None
    error: Any = None
    done: bool = False
    connections: int = 0


@dataclass
class Fleet:
    """children: by name, e.g. `verifier-1`. urls: of the gateways."""

    redis: EmbeddedRedis
    children: dict[str, Child] = field(default_factory=dict)
    urls: list[str] = field(default_factory=list)

    def kill(self, name: str) -> None:
        child = self.children[name]
        child.send(signal.SIGKILL)
        child.wait(10)

    def ready(self, gateway: int) -> bool:
        """Whether that gateway serves, with every part there."""
        try:
            reply = httpx.get(f"{self.urls[gateway]}/readyz", timeout=5)
        except httpx.TransportError:
            return False
        return reply.status_code == 200 and not reply.json()["problems"]

    def wait_ready(self, seconds: float = 60.0) -> None:
        deadline = time.monotonic() + seconds
        while not all(self.ready(n) for n in range(len(self.urls))):
            for child in self.children.values():
                assert child.exit_code is None or time.monotonic() < deadline, child.tail()
            assert time.monotonic() < deadline, {name: child.tail(3) for name, child in self.children.items()}
            time.sleep(0.1)

    def tell(self, body: dict[str, Any], told: Told, gateway: int, on_text: Callable[[Told], None]) -> None:
        """One connection: ask for the answer, or for the rest of it; until it ends or breaks."""
        headers = {"Last-Event-ID": told.position} if told.position else {}
        resuming, path = bool(told.session), f"/v1/sessions/{told.session}/stream"
        method, path = ("GET", path) if resuming else ("POST", "/v1/chat/completions")
        told.connections += 1
        with (
            httpx.Client(base_url=self.urls[gateway], timeout=60) as client,
            client.stream(method, path, headers=headers, json=None if resuming else body) as reply,
        ):
            if reply.status_code != 200:
                reply.read()
                told.error = reply.json()["error"]
                return
            told.session = reply.headers["x-session-id"]
            for line in reply.iter_lines():
                listen(line, told)
                if '"content":"' in line and '"content":""' not in line:
                    on_text(told)

    def converse(
        self, body: dict[str, Any], on_text: Callable[[Told], None] = lambda _: None, gateway: int = 0
    ) -> Told:
        """An answer, by a client that comes back on the next gateway as often as it must."""
        told, deadline = Told(), time.monotonic() + 120
        while not told.done:
            assert time.monotonic() < deadline, told
            told.error = None
            try:
                self.tell(body, told, gateway, on_text)
            except httpx.TransportError:
                time.sleep(0.05)
            if told.error is not None and told.error["code"] not in ("service_unavailable", "deadline_exceeded"):
                break
            gateway = (gateway + 1) % len(self.urls)
        return told


def listen(line: str, told: Told) -> None:
    """Take in one line of a stream."""
    if line.startswith("id: "):
        told.position = line.removeprefix("id: ")
    elif line == "data: [DONE]":
        told.done = True
    elif line.startswith("data: "):
        event = json.loads(line.removeprefix("data: "))
        told.error = event.get("error")
        told.usage = event.get("usage") or told.usage
        for choice in event.get("choices", ()):
            told.text += choice["delta"].get("content") or ""
            told.finish = choice["finish_reason"] or told.finish


@contextmanager
def fleet(
    folder: Path, target: str, draft: str, tokenizer: Path, count: int = 2, data: Path | None = None
) -> Iterator[Fleet]:
    """`count` of each service. data: where Redis keeps its data; None keeps none."""
    with ExitStack() as stack:
        redis = stack.enter_context(EmbeddedRedis(data=data))
        fleet = Fleet(redis)

        def start(name: str, service: str, port: int, **settings: str) -> None:
            prefix = f"ADASD_{service.upper()}_"
            environment = {prefix + key: value for key, value in {"PORT": str(port), **settings}.items()}
            child = Child(name, [sys.executable, "-m", f"services.{service}"], folder / f"{name}.log", environment)
            child.start()
            stack.callback(child.stop)
            fleet.children[name] = child

        ports = {service: [free_port() for _ in range(count)] for service in ("drafter", "verifier", "gateway")}
        for service, model in (("drafter", draft), ("verifier", target)):
            for n, port in enumerate(ports[service]):
                start(f"{service}-{n}", service, port, MODEL=model)
        for n, port in enumerate(ports["gateway"]):
            addresses = {s.upper(): ",".join(f"127.0.0.1:{p}" for p in ports[s]) for s in ("drafter", "verifier")}
            start(
                f"gateway-{n}",
                "gateway",
                port,
                REDIS_URL=redis.url,
                TOKENIZER=str(tokenizer),
                MODEL_NAME="test",
                **addresses,
                **GATEWAY,
            )
            fleet.urls.append(f"http://127.0.0.1:{port}")
        fleet.wait_ready()
        yield fleet
