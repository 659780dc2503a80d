"""A client that comes back: its answer goes on at any gateway, from the last event that it has."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from adasd.core.errors import DeadlineExceeded

PASSING = ("service_unavailable", "deadline_exceeded", "overloaded")
"""Codes of errors after which the stream is asked for again."""
PAUSE_SECONDS = 0.05


@dataclass
class Told:
    """What a client has been told so far, through however many connections.

    position: id of the last event. repeated: events with text that was had already. connections: those tried.
    gaps: seconds without text, wherever the connection was lost meanwhile. errors: messages of those that passed.
    """

    session: str = ""
    position: str = ""
    text: str = ""
    finish: str | None = None
    usage: Any = None
    error: Any = None
    done: bool = False
    connections: int = 0
    repeated: int = 0
    gaps: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    _named: str = ""  # the event under way
    _at: float = 0.0
    _through: int = 0  # the connection of the last text
    _tokens: int = 0  # position of the last text

    @property
    def tokens(self) -> int:
        """Generated tokens up to the last event."""
        return int(self.position.partition("-")[0] or 0)

    def hear(self, line: str) -> bool:
        """Take in a line of a stream; whether it brings text."""
        if line.startswith("id: "):
            self._named = line.removeprefix("id: ")
        elif line == "data: [DONE]":
            self.done = True
        elif line.startswith("data: "):
            self.position = self._named  # only now: an event may be cut in two
            return self._event(json.loads(line.removeprefix("data: ")))
        return False

    def _event(self, event: Mapping[str, Any]) -> bool:
        self.error = event.get("error")
        self.usage = event.get("usage") or self.usage
        pieces = [choice["delta"].get("content") or "" for choice in event.get("choices", ())]
        for choice in event.get("choices", ()):
            self.finish = choice["finish_reason"] or self.finish
        if any(pieces):
            self._text("".join(pieces))
        return any(pieces)

    def _text(self, piece: str) -> None:
        now = time.monotonic()
        if self._through not in (0, self.connections):
            self.gaps.append(now - self._at)
        self.text += piece
        self.repeated += self.tokens <= self._tokens
        self._at, self._through, self._tokens = now, self.connections, self.tokens


@dataclass(frozen=True, slots=True)
class ResumingClient:
    """urls: of gateways that share their sessions. read_seconds: silence after which it looks elsewhere.

    give_up: seconds an answer may take in all.
    """

    urls: Sequence[str]
    read_seconds: float = 60.0
    give_up: float = 120.0

    def tell(
        self, body: dict[str, Any], told: Told, gateway: int = 0, on_text: Callable[[Told], None] = lambda _: None
    ) -> None:
        """One connection: ask for the answer, or for the rest of it; until it ends, or breaks with TransportError."""
        resuming = bool(told.session)
        method = "GET" if resuming else "POST"
        path = f"/v1/sessions/{told.session}/stream" if resuming else "/v1/chat/completions"
        headers = {"Last-Event-ID": told.position} if told.position else {}
        told.connections += 1
        with (
            httpx.Client(base_url=self.urls[gateway], timeout=self.read_seconds) as client,
            client.stream(method, path, headers=headers, json=None if resuming else body) as reply,
        ):
            if reply.status_code != 200:
                reply.read()
                told.error = reply.json()["error"]
                return
            told.session = reply.headers["x-session-id"]
            for line in reply.iter_lines():
                if told.hear(line):
                    on_text(told)

    def converse(
        self, body: dict[str, Any], on_text: Callable[[Told], None] = lambda _: None, gateway: int = 0
    ) -> Told:
        """An answer, through as many connections as it takes, or with the error that ended it.

        Raises DeadlineExceeded if it does not end.
        """
        told, deadline = Told(), time.monotonic() + self.give_up
        while not told.done:
            if time.monotonic() > deadline:
                raise DeadlineExceeded(f"no end of an answer within {self.give_up:g} s: {told}")
            told.error = None
            try:
                self.tell(body, told, gateway, on_text)
            except httpx.TransportError:
                time.sleep(PAUSE_SECONDS)
            if told.error is not None:
                if told.error["code"] not in PASSING:
                    break
                told.errors.append(told.error["message"])
                time.sleep(PAUSE_SECONDS)
            gateway = (gateway + 1) % len(self.urls)
        return told

    def session(self, told: Told) -> dict[str, Any]:
        """What any gateway says of the session. Raises DeadlineExceeded if none answers in time."""
        deadline = time.monotonic() + self.give_up
        while time.monotonic() < deadline:
            for url in self.urls:
                try:
                    reply = httpx.get(f"{url}/v1/sessions/{told.session}", timeout=self.read_seconds)
                except httpx.TransportError:
                    continue
                if reply.status_code == 200:
                    return dict(reply.json())
            time.sleep(PAUSE_SECONDS)
        raise DeadlineExceeded(f"no gateway tells of session {told.session}")
