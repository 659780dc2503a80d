"""The whole product on one machine: Redis, drafter, verifier and gateway as processes, watched and restarted."""

from __future__ import annotations

import json
import os
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType

from adasd.cli.processes import Child, free_port
from adasd.core.errors import InvalidRequest, ServiceUnavailable
from adasd.runtime.toy import is_toy
from adasd.state.embedded import EmbeddedRedis

HUGE_PAGES = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1:glibc.malloc.arena_max=1"}
"""Of 2 MB, which glibc asks for as in the models' image; what they bring: docs/engines.md."""
OWN = "ADASD_DRAFTER_"
RESTARTS_A_MINUTE = 5
POLL_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class StackOptions:
    """What to start. draft, target: model specs (`toy:...` or a folder). tokenizer: folder the gateway reads.

    redis_url: an existing Redis; None starts a private one. port: of the gateway, 0 takes a free one.
    environment: further ADASD_* settings, for all services. modules: programs other than `services.<name>`.
    beside: drafter and verifier are one process.
    """

    draft: str
    target: str
    tokenizer: Path
    model_name: str
    logs: Path
    host: str = "127.0.0.1"
    port: int = 8000
    redis_url: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    modules: Mapping[str, str] = field(default_factory=dict)
    beside: bool = False

    @property
    def given(self) -> dict[str, str]:
        """Settings of the services, by the names of their variables."""
        return os.environ | dict(self.environment)

    @property
    def share_cores(self) -> bool:
        """Both models compute on this machine's cores, unless they are toys or are told to use something else."""
        devices = (self.given.get(f"ADASD_{one}_RUNTIME__DEVICE", "cpu") for one in ("DRAFTER", "VERIFIER"))
        return not is_toy(self.target) and all(device == "cpu" for device in devices)

    @property
    def drafters_own(self) -> list[str]:
        """What only a drafter by itself can be told."""
        own = (name for name in self.given if name.startswith(OWN))
        return sorted(name for name in own if not name.startswith(f"{OWN}RUNTIME__"))

    def placed(self, beside: bool | None) -> StackOptions:
        """With drafter and verifier as one process or two; None: as one where that is faster and can be."""
        return replace(self, beside=self.share_cores and not self.drafters_own if beside is None else beside)


class Stack:
    """Starts on `with`, ready after `wait_ready`, stopped in reverse order at the end."""

    def __init__(self, options: StackOptions) -> None:
        self._options = options
        self._exits = ExitStack()
        self._restarts: list[float] = []
        self.children: dict[str, Child] = {}
        self.metrics: dict[str, str] = {}
        self.url = ""

    def __enter__(self) -> Stack:
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
        options = self._options
        options.logs.mkdir(parents=True, exist_ok=True)
        redis_url = options.redis_url or self._exits.enter_context(EmbeddedRedis()).url
        port = options.port or free_port()
        self.url = f"http://{options.host}:{port}"
        drafter, verifier = self._add_pair() if options.beside else self._add_two()
        shared = {"ADASD_GATEWAY_SHARED_CORES": "true"} if options.share_cores else {}
        self._add(
            "gateway",
            **shared,
            ADASD_GATEWAY_HOST=options.host,
            ADASD_GATEWAY_PORT=str(port),
            ADASD_GATEWAY_DRAFTER=drafter,
            ADASD_GATEWAY_VERIFIER=verifier,
            ADASD_GATEWAY_REDIS_URL=redis_url,
            ADASD_GATEWAY_TOKENIZER=str(options.tokenizer),
            ADASD_GATEWAY_MODEL_NAME=options.model_name,
            ADASD_GATEWAY_DRAFTER_PREFILL="false",  # on shared cores it would delay the first token
        )

    def _add_two(self) -> tuple[str, str]:
        """Drafter and verifier as processes of their own; their addresses."""
        options = self._options
        student_of = {} if is_toy(options.target) else {f"{OWN}RUNTIME__TARGET": options.target}
        drafter = self._add_model("drafter", options.draft, **student_of, **self._cores("drafter"))
        return drafter, self._add_model("verifier", options.target, **self._cores("verifier"))

    def _add_pair(self) -> tuple[str, str]:
        """The verifier with the drafter beside it; the address of both.

        Raises InvalidRequest for what only a drafter by itself can be told.
        """
        if others := self._options.drafters_own:
            raise InvalidRequest(f"a drafter beside the verifier has no settings of its own: {', '.join(others)}")
        own = {name: value for name, value in self._options.given.items() if name.startswith(OWN)}
        runtime = {name.replace(OWN, "ADASD_VERIFIER_DRAFT_"): value for name, value in own.items()}
        draft = {"ADASD_VERIFIER_DRAFT": self._options.draft, **runtime}
        address = self._add_model("verifier", self._options.target, **draft)
        return address, address

    def _cores(self, name: str) -> dict[str, str]:
        """The file with which a model takes its turns, where it has to."""
        setting = f"ADASD_{name.upper()}_RUNTIME__SHARED_CORES"
        if setting in self._options.given or not self._options.share_cores:
            return {}
        return {setting: str((self._options.logs / "cores.lock").absolute())}

    def _add_model(self, name: str, model: str, **environment: str) -> str:
        """Start drafter or verifier; its address."""
        port, metrics = free_port(), free_port()
        prefix = f"ADASD_{name.upper()}"
        ports = {f"{prefix}_PORT": str(port), f"{prefix}_METRICS_PORT": str(metrics)}
        pages = {} if HUGE_PAGES.keys() & self._options.given.keys() else HUGE_PAGES
        self._add(name, **ports, **{f"{prefix}_MODEL": model}, **environment, **pages)
        self.metrics[name] = f"http://127.0.0.1:{metrics}/metrics"
        return f"127.0.0.1:{port}"

    def _add(self, name: str, **environment: str) -> None:
        prefix = f"ADASD_{name.upper()}_"
        extra = {key: value for key, value in self._options.environment.items() if key.startswith(prefix)}
        command = [sys.executable, "-m", self._options.modules.get(name, f"services.{name}")]
        child = Child(name, command, self._options.logs / f"{name}.log", environment | extra)
        child.log.write_text("")
        child.start()
        self._exits.callback(child.stop)
        self.children[name] = child

    def problem(self) -> str | None:
        """Why the stack is not ready; None once it is."""
        try:
            with urllib.request.urlopen(f"{self.url}/readyz", timeout=5) as answer:
                return None if answer.status == 200 else f"/readyz says {answer.status}"
        except urllib.error.HTTPError as error:
            return _reason(error.read())
        except OSError:
            return "the gateway does not answer yet"

    def wait_ready(self, seconds: float, progress: Callable[[str], None] = lambda _: None) -> None:
        """Block until requests are served. Raises ServiceUnavailable with a log's end if a service ends first."""
        deadline = time.monotonic() + seconds
        while (problem := self.problem()) is not None:
            for child in self.ended():
                raise ServiceUnavailable(f"the {child.name} ended with {child.exit_code}:\n{child.tail()}")
            if time.monotonic() > deadline:
                raise ServiceUnavailable(
                    f"not ready after {seconds:.0f} s: {problem}\n{self.children['gateway'].tail()}"
                )
            progress(problem)
            time.sleep(POLL_SECONDS)

    def ended(self) -> Iterator[Child]:
        """Services that are no longer running."""
        return (child for child in self.children.values() if child.exit_code is not None)

    def restart_ended(self) -> list[str]:
        """Start ended services again; their names. Raises ServiceUnavailable if that happens too often."""
        names = []
        for child in self.ended():
            now = time.monotonic()
            self._restarts = [*(then for then in self._restarts if now - then < 60), now]
            if len(self._restarts) > RESTARTS_A_MINUTE:
                raise ServiceUnavailable(f"the {child.name} ends again and again:\n{child.tail()}")
            child.start()
            names.append(child.name)
        return names


def _reason(body: bytes) -> str:
    """The message of an error reply."""
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return "the gateway is not ready"
