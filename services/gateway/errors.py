"""Errors as HTTP replies: OpenAI's error body everywhere, statuses from the one table in `adasd.rpc.status`."""

from __future__ import annotations

import math
from typing import Any

import orjson
from starlette.exceptions import HTTPException
from starlette.responses import Response

from adasd.core.errors import (
    AdasdError,
    Conflict,
    ContextLengthExceeded,
    DeadlineExceeded,
    InvalidDraft,
    InvalidRequest,
    ModelNotFound,
    NumericalFault,
    Overloaded,
    RateLimited,
    ServiceUnavailable,
    SessionNotFound,
    Unauthenticated,
)
from adasd.rpc.status import status_of

RETRY_AFTER_SECONDS = 1
INTERNAL_MESSAGE = "internal error"
UNAVAILABLE_MESSAGE = "a part of this service does not answer now; try again"
MAX_MESSAGE_CHARACTERS = 1024
"""Errors quote what the client sent, which may be a body's worth."""


class Unavailable(ServiceUnavailable):
    """The gateway itself cannot serve this now, in words that are meant for clients."""


_FIXED_MESSAGES: dict[type[AdasdError], str] = {
    AdasdError: INTERNAL_MESSAGE,
    InvalidDraft: INTERNAL_MESSAGE,
    ServiceUnavailable: UNAVAILABLE_MESSAGE,
}
"""Of errors whose own words are for the log: they may name addresses, files, what a library said."""

KINDS: dict[type[AdasdError], tuple[str, str | None]] = {
    AdasdError: ("server_error", "internal_error"),
    InvalidRequest: ("invalid_request_error", None),
    ContextLengthExceeded: ("invalid_request_error", "context_length_exceeded"),
    ModelNotFound: ("invalid_request_error", "model_not_found"),
    InvalidDraft: ("server_error", "internal_error"),
    NumericalFault: ("server_error", "numerical_fault"),
    SessionNotFound: ("invalid_request_error", "session_not_found"),
    Conflict: ("conflict_error", "conflict"),
    Unauthenticated: ("invalid_request_error", "invalid_api_key"),
    Overloaded: ("rate_limit_error", "overloaded"),
    RateLimited: ("rate_limit_error", "rate_limit_exceeded"),
    ServiceUnavailable: ("server_error", "service_unavailable"),
    DeadlineExceeded: ("server_error", "deadline_exceeded"),
}
"""OpenAI's `type` and `code` of each error."""


def error_body(error: AdasdError) -> dict[str, Any]:
    """`{"error": ...}` as a reply's body or as the data of a last event."""
    kind, code = next(KINDS[base] for base in type(error).__mro__ if base in KINDS)
    message, param = _FIXED_MESSAGES.get(type(error), str(error)), getattr(error, "param", None)
    return {"error": {"message": _short(message), "type": kind, "param": param and _short(param), "code": code}}


def _short(text: str) -> str:
    return text if len(text) <= MAX_MESSAGE_CHARACTERS else f"{text[:MAX_MESSAGE_CHARACTERS]}..."


def error_response(error: AdasdError, **extra: object) -> Response:
    """The reply for an error; `extra` fields stand beside `error` in the body."""
    status = status_of(error).http
    return json_response({**error_body(error), **extra}, status, _headers(error, status))


def _headers(error: AdasdError, status: int) -> dict[str, str]:
    if status in (429, 503):
        seconds = getattr(error, "retry_after", None) or RETRY_AFTER_SECONDS
        return {"Retry-After": str(math.ceil(seconds))}
    return {"WWW-Authenticate": "Bearer"} if status == 401 else {}


def http_error_response(error: HTTPException) -> Response:
    """The reply for what the router refuses: unknown path, wrong method, a body that is too large."""
    body = {"message": str(error.detail), "type": "invalid_request_error", "param": None, "code": None}
    return json_response({"error": body}, error.status_code, dict(error.headers or {}))


def json_response(body: object, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(orjson.dumps(body), status, headers, "application/json")
