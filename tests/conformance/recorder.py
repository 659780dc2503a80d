"""A proxy that passes everything on unchanged and remembers what clients sent: no client says so itself."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

import orjson

HOP_BY_HOP = {"connection", "transfer-encoding", "keep-alive", "host"}
PIECE = 65536


@dataclass
class Exchange:
    """One request, and the status it was answered with. body: its JSON; None without one."""

    method: str
    path: str
    headers: dict[str, str]
    body: Any
    status: int = 0


@dataclass
class Recorder:
    """url: of the proxy. exchanges: in the order in which requests came."""

    url: str
    exchanges: list[Exchange] = field(default_factory=list)

    @property
    def bodies(self) -> list[dict[str, Any]]:
        return [exchange.body for exchange in self.exchanges if exchange.body is not None]

    @property
    def statuses(self) -> list[int]:
        return [exchange.status for exchange in self.exchanges]


@contextmanager
def recording(upstream: str) -> Iterator[Recorder]:
    """A proxy in front of `upstream`, http://host:port, for as long as the block lasts."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.daemon_threads = True
    recorder = Recorder(f"http://127.0.0.1:{server.server_address[1]}")
    server.upstream, server.recorder = urlsplit(upstream).netloc, recorder  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield recorder
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    """HTTP/1.0 towards the client: the end of the connection is the end of the reply."""

    def do_GET(self) -> None:
        self._pass_on()

    def do_POST(self) -> None:
        self._pass_on()

    def do_DELETE(self) -> None:
        self._pass_on()

    def _pass_on(self) -> None:
        raw = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        exchange = Exchange(self.command, self.path, dict(self.headers), orjson.loads(raw) if raw else None)
        self.server.recorder.exchanges.append(exchange)  # type: ignore[attr-defined]
        connection = http.client.HTTPConnection(self.server.upstream, timeout=60)  # type: ignore[attr-defined]
        kept = {name: value for name, value in self.headers.items() if name.lower() not in HOP_BY_HOP}
        connection.request(self.command, self.path, raw or None, {**kept, "Connection": "close"})
        reply = connection.getresponse()
        exchange.status = reply.status
        with suppress(BrokenPipeError, ConnectionResetError):  # a client that goes: so does the connection upstream
            self._answer(reply)
        connection.close()

    def _answer(self, reply: http.client.HTTPResponse) -> None:
        self.send_response_only(reply.status)
        for name, value in reply.getheaders():
            if name.lower() not in HOP_BY_HOP:
                self.send_header(name, value)
        self.end_headers()
        while piece := reply.read1(PIECE):
            self.wfile.write(piece)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Nothing: what was asked is in the recorder."""


def unasked(body: dict[str, Any], *asked: str) -> dict[str, Any]:
    """What a client added to the fields that its user set. A new version that sends something new shows it here."""
    return {name: value for name, value in body.items() if name not in asked}
