"""What others notice of clients that read slowly or send much: how long /healthz takes meanwhile."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import httpx

from adasd.bench.statistics import percentile

PROBE_PAUSE_SECONDS = 0.02
SLOW_BUFFER_BYTES = 4096
"""Of a slow reader's kernel: the smaller, the sooner the gateway notices."""
WORDS = "the quick brown fox jumps over the lazy dog "
TIMEOUT_SECONDS = 120.0


@dataclass
class Latencies:
    """seconds: of each answered probe. failures: probes without an answer, or with another than 200."""

    seconds: list[float] = field(default_factory=list)
    failures: int = 0

    def row(self, name: str) -> str:
        """One line of the table."""
        if not self.seconds:
            return f"| {name} | 0 | - | - | - | {self.failures} |"
        shares = (percentile(self.seconds, share) for share in (50, 99, 100))
        figures = " | ".join(f"{1000 * share:.0f}" for share in shares)
        return f"| {name} | {len(self.seconds)} | {figures} | {self.failures} |"


HEAD = "| meanwhile | probes | median, ms | p99, ms | worst, ms | failed |\n|---|---|---|---|---|---|"


@dataclass(frozen=True, slots=True)
class Edge:
    """A gateway under trial. model: that it serves. readers: clients that read a byte a second. prompt_bytes: of each
    prompt that `posters` clients send, one after the other.
    """

    url: str
    model: str
    readers: int = 50
    posters: int = 2
    prompt_bytes: int = 5_000_000

    def probed(self, seconds: float) -> Latencies:
        """/healthz again and again for so long."""
        found, until = Latencies(), time.monotonic() + seconds
        with httpx.Client(base_url=self.url, timeout=TIMEOUT_SECONDS) as client:
            while time.monotonic() < until:
                begin = time.perf_counter()
                try:
                    found.failures += client.get("/healthz").status_code != 200
                except httpx.HTTPError:
                    found.failures += 1
                else:
                    found.seconds.append(time.perf_counter() - begin)
                time.sleep(PROBE_PAUSE_SECONDS)
        return found

    @contextmanager
    def slow_readers(self) -> Iterator[list[socket.socket]]:
        """Streams of the longest answers there are, from which a byte a second is read."""
        body = {"model": self.model, "messages": [{"role": "user", "content": "go on"}], "stream": True}
        request = self._request(json.dumps(body | {"ignore_eos": True}).encode())
        readers = [self._connected(request) for _ in range(self.readers)]
        try:
            with _running([lambda stop: _read_slowly(readers, stop)]):
                yield readers
        finally:
            for reader in readers:
                reader.close()

    @contextmanager
    def long_prompts(self, statuses: list[int]) -> Iterator[None]:
        """Clients that send prompts of `prompt_bytes`. statuses: takes those of their answers."""
        text = (WORDS * (self.prompt_bytes // len(WORDS) + 1))[: self.prompt_bytes]
        body = {"model": self.model, "messages": [{"role": "user", "content": text}], "max_tokens": 1}
        content = json.dumps(body).encode()
        with _running([lambda stop: self._post(content, statuses, stop)] * self.posters):
            yield

    def _post(self, content: bytes, statuses: list[int], stop: threading.Event) -> None:
        headers = {"Content-Type": "application/json"}
        with httpx.Client(base_url=self.url, timeout=TIMEOUT_SECONDS) as client:
            while not stop.is_set():
                with suppress(httpx.HTTPError):  # a body that is refused unread may lose its connection
                    statuses.append(client.post("/v1/chat/completions", content=content, headers=headers).status_code)

    def _connected(self, request: bytes) -> socket.socket:
        place = urlsplit(self.url)
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SLOW_BUFFER_BYTES)
        connection.connect((place.hostname, place.port))
        connection.sendall(request)
        return connection

    def _request(self, body: bytes) -> bytes:
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {urlsplit(self.url).netloc}\r\nContent-Length: {len(body)}"
        return f"{head}\r\nContent-Type: application/json\r\n\r\n".encode() + body


def _read_slowly(readers: list[socket.socket], stop: threading.Event) -> None:
    """A byte a second from each that has one."""
    while not stop.wait(1.0):
        for reader in readers:
            with suppress(OSError):
                reader.recv(1, socket.MSG_DONTWAIT)


@contextmanager
def _running(works: list[Callable[[threading.Event], None]]) -> Iterator[None]:
    stop = threading.Event()
    threads = [threading.Thread(target=work, args=[stop]) for work in works]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()
