"""Several processes of every service over one Redis, any of which may be killed, paused, and started again."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

import httpx

from adasd.cli.network import Network
from adasd.cli.processes import Child, free_port
from adasd.core.errors import ServiceUnavailable
from adasd.rpc.health import state
from adasd.state.embedded import EmbeddedRedis

LEASE_SECONDS = 1.0
STORE_DEADLINE_SECONDS = 5.0
DRAFTER_WAIT_SECONDS = 10.0
GATEWAY = {
    "STORE__LEASE": str(LEASE_SECONDS),
    "STORE__REPLY_TIMEOUT": "1",
    "STORE__DEADLINE": str(STORE_DEADLINE_SECONDS),
    "DRAFTER_WAIT": str(DRAFTER_WAIT_SECONDS),
    "PROBE_SECONDS": "0.2",
    "GRACE_SECONDS": "10",
    "RESUME_WAIT": "10",
}
"""Short times, so that what waits for a lapse does not wait long."""
ENDS_WITHIN_SECONDS = 10.0
REDIS_SECONDS = 120.0
"""For Redis to read what it kept, on a busy machine."""
POLL_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class FleetOptions:
    """What to start. draft, target: model specs. tokenizer: folder that the gateways read. logs: folder.

    count: processes of each service. data: where Redis keeps its data; None keeps none.
    network: whether a network that can be disturbed lies between gateways and the rest.
    environment: further ADASD_* settings, for all services.
    """

    draft: str
    target: str
    tokenizer: Path
    logs: Path
    model_name: str = "test"
    count: int = 2
    data: Path | None = None
    network: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass
class Fleet:
    """Starts on `with`, ready after `wait_ready`.

    children, ports: by name, e.g. `verifier-1`. urls: of the gateways. network: wires are called as children, or redis.
    """

    options: FleetOptions
    children: dict[str, Child] = field(default_factory=dict)
    ports: dict[str, int] = field(default_factory=dict)
    urls: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.redis = EmbeddedRedis(data=self.options.data, start_timeout=REDIS_SECONDS)
        self.network = Network() if self.options.network else None
        self._exits = ExitStack()

    def __enter__(self) -> Fleet:
        try:
            self._start()
        except BaseException:
            self._exits.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._exits.close()

    def _start(self) -> None:
        options, redis = self.options, self._exits.enter_context(self.redis)
        options.logs.mkdir(parents=True, exist_ok=True)
        if self.network is not None:
            self._exits.enter_context(self.network)
        models = {"drafter": options.draft, "verifier": options.target}
        addresses = {
            service.upper(): ",".join(self._replica(f"{service}-{n}", model) for n in range(options.count))
            for service, model in models.items()
        }
        redis_url = redis.url
        if self.network is not None:
            redis_url = f"redis://127.0.0.1:{self.network.add('redis', redis.server.socket)}"
        gateway = {"REDIS_URL": redis_url, "TOKENIZER": str(options.tokenizer), "MODEL_NAME": options.model_name}
        for n in range(options.count):
            port = self._add(f"gateway-{n}", gateway | addresses | GATEWAY)
            self.urls.append(f"http://127.0.0.1:{port}")

    def _replica(self, name: str, model: str) -> str:
        """Start a drafter or a verifier; where gateways find it."""
        port = self._add(name, {"MODEL": model})
        return f"127.0.0.1:{port if self.network is None else self.network.add(name, ('127.0.0.1', port))}"

    def _add(self, name: str, settings: Mapping[str, str]) -> int:
        """Start a process of the service that the name begins with; its port."""
        service, port = name.partition("-")[0], free_port()
        environment = {f"ADASD_{service.upper()}_{key}": value for key, value in settings.items()}
        environment[f"ADASD_{service.upper()}_PORT"] = str(port)
        extra = self.options.environment.items()
        environment |= {key: value for key, value in extra if key.startswith(f"ADASD_{service.upper()}_")}
        command = [sys.executable, "-m", f"services.{service}"]
        child = Child(name, command, self.options.logs / f"{name}.log", environment)
        child.start()
        self._exits.callback(child.stop)
        self.children[name], self.ports[name] = child, port
        return port

    def kill(self, name: str) -> None:
        """SIGKILL; what it was doing is lost."""
        child = self.children[name]
        child.send(signal.SIGKILL)
        child.wait(ENDS_WITHIN_SECONDS)

    def pause(self, name: str, seconds: float) -> None:
        """Stop it and let it go on, as if its machine had slept."""
        child = self.children[name]
        child.send(signal.SIGSTOP)
        try:
            time.sleep(seconds)
        finally:
            child.send(signal.SIGCONT)

    def serves(self, replica: str) -> bool:
        """Whether that drafter or verifier has its model and answers."""
        return state(f"127.0.0.1:{self.ports[replica]}", seconds=1.0) == "SERVING"

    def ready(self, gateway: int) -> bool:
        """Whether that gateway serves, with every part there."""
        try:
            reply = httpx.get(f"{self.urls[gateway]}/readyz", timeout=5)
        except httpx.TransportError:
            return False
        return reply.status_code == 200 and not reply.json()["problems"]

    def wait_ready(self, seconds: float = 60.0) -> None:
        """Block until all gateways serve. Raises ServiceUnavailable with the ends of the logs if that takes longer."""
        deadline = time.monotonic() + seconds
        while not all(self.ready(n) for n in range(len(self.urls))):
            if time.monotonic() > deadline:
                ends = "\n".join(f"{name}: {child.tail(3)}" for name, child in self.children.items())
                raise ServiceUnavailable(f"not ready after {seconds:.0f} s:\n{ends}")
            time.sleep(POLL_SECONDS)
