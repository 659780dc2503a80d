"""An answer's chunks through as many connections as it takes: a broken one is taken up again where it broke."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import httpx

from adasd.bench.sse import ChatError, error_message
from adasd.cli.resuming import PASSING
from adasd.core.errors import ServiceUnavailable

WINDOW_SECONDS = 60
"""How long the gateway goes on without its client, and how long the client goes on looking for it."""
PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.1, 2.0


class _Broken(Exception):
    """The connection is gone, or what answers it cannot go on for now; the message says how."""


class ReconnectingStream:
    """One streamed chat. say: told, in a few words, when the connection breaks and when it is back."""

    def __init__(self, client: httpx.Client, request: dict[str, Any], say: Callable[[str], None]) -> None:
        self._client = client
        window = {"resumable": {"window_s": WINDOW_SECONDS}}
        self._body = {"stream_options": {"include_usage": True}, **window, **request, "stream": True}
        self._say = say
        self._session = ""
        self._position = ""  # id of the last event that came whole
        self._done = False

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Every chunk once. Raises ChatError for what cannot go on, ServiceUnavailable where nobody answers."""
        lost: float | None = None
        pause = PAUSE_SECONDS
        while not self._done:
            try:
                for chunk in self._connection():
                    if lost is not None:
                        self._say("reconnected")
                        lost, pause = None, PAUSE_SECONDS
                    yield chunk
            except (httpx.TransportError, _Broken) as error:
                lost = self._lost(lost, error)
                time.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

    def stop(self) -> None:
        """End the session: nobody waits for the rest. What cannot be told to the gateway ends with its window."""
        if self._session and not self._done:
            with suppress(httpx.TransportError):
                self._client.delete(f"/v1/sessions/{self._session}", timeout=5)

    def _lost(self, since: float | None, error: Exception) -> float:
        """Since when. Raises ServiceUnavailable for an answer that never began, or after too long."""
        if not self._session:
            raise ServiceUnavailable(
                f"no answer from {self._client.base_url}: {error}; is `adasd up` running?"
            ) from error
        if since is None:
            self._say("connection lost, reconnecting")
            return time.monotonic()
        if time.monotonic() - since > WINDOW_SECONDS:
            raise ServiceUnavailable(f"the answer did not go on within {WINDOW_SECONDS} s: {error}") from error
        return since

    def _connection(self) -> Iterator[dict[str, Any]]:
        """The chunks of one connection. Ends with the answer, or raises."""
        if self._session:
            path, headers = f"/v1/sessions/{self._session}/stream", {"Last-Event-ID": self._position}
            asking = self._client.stream("GET", path, headers=headers if self._position else {})
        else:
            asking = self._client.stream("POST", "/v1/chat/completions", json=self._body)
        with asking as reply:
            if reply.status_code != 200:
                reply.read()
                raise self._refused(reply)
            self._session = reply.headers.get("X-Session-Id", "")
            yield from self._chunks(reply.iter_lines())

    def _chunks(self, lines: Iterator[str]) -> Iterator[dict[str, Any]]:
        name = ""
        for line in lines:
            if line.startswith("id: "):
                name = line.removeprefix("id: ")
            elif line == "data: [DONE]":
                self._done = True
                return
            elif line.startswith("data: "):
                event: dict[str, Any] = json.loads(line.removeprefix("data: "))
                if "error" in event:
                    raise self._failed(event["error"])
                self._position = name
                yield event
        raise _Broken("the stream ended without an end mark")

    def _refused(self, reply: httpx.Response) -> Exception:
        try:
            return self._failed(reply.json()["error"])
        except (ValueError, KeyError, TypeError):
            return ChatError(f"HTTP {reply.status_code}")

    def _failed(self, error: Any) -> Exception:
        """What an error object means: whether it may pass."""
        message = error_message(error)
        passing = self._session and isinstance(error, dict) and error.get("code") in PASSING
        return _Broken(message) if passing else ChatError(message)
