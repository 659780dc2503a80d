"""Child processes of `adasd up`: started with a log file, ended with their parent, stopped politely."""

from __future__ import annotations

import ctypes
import itertools
import os
import random
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

STOP_SECONDS = 15.0
"""How long a child may take to drain after SIGTERM before it is killed."""
QUIET_PORTS = range(20_000, 32_000)
"""Below the ephemeral range of Linux and macOS."""
PROCESSES = 61
"""Among which they are dealt out: more than choose ports at a time, and a prime, so that neighbours by id differ."""
_turns = itertools.count(random.randrange(len(QUIET_PORTS)))
_PR_SET_PDEATHSIG = 1


def free_port() -> int:
    """A TCP port of the loopback interface that nobody listens on, and that no outgoing connection will be given.

    Ports that the system itself hands out are taken again by the time a child has started, or started anew. So are
    those of whoever chooses at the same time: processes choose from ports of their own, each of them in turn.
    """
    own = QUIET_PORTS[os.getpid() % PROCESSES :: PROCESSES]
    while True:
        port = own[next(_turns) % len(own)]
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def _die_with_parent() -> None:
    """Linux: the kernel sends SIGTERM to this child when its parent ends, however it ends."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


@dataclass
class Child:
    """One supervised program. Its output goes to `log`; `environment` is added to this process's own."""

    name: str
    command: Sequence[str]
    log: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    _process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start (again). The child has its own session, so that Ctrl-C reaches it through us only."""
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **self.environment},
                start_new_session=True,
                preexec_fn=_die_with_parent if os.name == "posix" and os.uname().sysname == "Linux" else None,
            )

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    @property
    def exit_code(self) -> int | None:
        """None while it runs or before it was started."""
        return self._process.poll() if self._process else None

    def send(self, signal_number: int) -> None:
        """Signal it, if it runs."""
        if self._process and self._process.poll() is None:
            self._process.send_signal(signal_number)

    def wait(self, seconds: float) -> int | None:
        """Its exit code, or None if it still runs after `seconds`."""
        if self._process is None:
            return None
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def stop(self) -> None:
        """SIGTERM, then SIGKILL if it has not ended in time."""
        self.send(signal.SIGTERM)
        if self._process and self.wait(STOP_SECONDS) is None:
            self.send(signal.SIGKILL)
            self._process.wait()

    def tail(self, lines: int = 15) -> str:
        """The end of its log."""
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        return "\n".join(text.splitlines()[-lines:])
