"""The client side of a streamed chat: server-sent events as parsed JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx

from adasd.core.errors import AdasdError, ServiceUnavailable


class ChatError(AdasdError):
    """The server's error object, as a message."""


def stream_chat(client: httpx.Client, request: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The chunks of POST /v1/chat/completions with `stream`. Raises ChatError for error bodies and error events.

    They end with the usage, unless the server never tells it or the request brings `stream_options` of its own.
    """
    body = {"stream_options": {"include_usage": True}, **request, "stream": True}
    try:
        with client.stream("POST", "/v1/chat/completions", json=body) as answer:
            if answer.status_code != 200:
                answer.read()
                raise ChatError(_message(answer))
            yield from _events(answer.iter_lines())
    except httpx.TransportError as error:
        raise ServiceUnavailable(f"no answer from {client.base_url}: {error}; is `adasd up` running?") from error


def _events(lines: Iterator[str]) -> Iterator[dict[str, Any]]:
    """Parsed events up to the end mark; some servers send none, but nothing is missing after the usage."""
    complete = False
    for line in lines:
        if line == "data: [DONE]":
            return
        if not line.startswith("data: "):
            continue
        event: dict[str, Any] = json.loads(line.removeprefix("data: "))
        if "error" in event:
            raise ChatError(error_message(event["error"]))
        complete = event.get("usage") is not None
        yield event
    if not complete:
        raise ChatError("the stream ended without an end mark")


def _message(answer: httpx.Response) -> str:
    try:
        return error_message(answer.json()["error"])
    except (ValueError, KeyError, TypeError):
        return f"HTTP {answer.status_code}"


def error_message(error: Any) -> str:
    """OpenAI's error object, or the bare text that other servers send."""
    return str(error["message"] if isinstance(error, dict) else error)
