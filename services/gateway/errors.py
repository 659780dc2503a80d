"""Errors as HTTP replies: OpenAI's error body everywhere, statuses from the one table in `adasd.rpc.status`."""

from __future__ import annotations

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
    ServiceUnavailable,
    SessionNotFound,
)
from adasd.rpc.status import status_of

RETRY_AFTER_SECONDS = 1
INTERNAL_MESSAGE = "internal error"
_TELLS_NOTHING = (AdasdError, InvalidDraft)
"""Faults of our own: the log has them, the client does not."""

KINDS: dict[type[AdasdError], tuple[str, str | None]] = {
    AdasdError: ("server_error", "internal_error"),
    InvalidRequest: ("invalid_request_error", None),
    ContextLengthExceeded: ("invalid_request_error", "context_length_exceeded"),
    ModelNotFound: ("invalid_request_error", "model_not_found"),
    InvalidDraft: ("server_error", "internal_error"),
    NumericalFault: ("server_error", "numerical_fault"),
    SessionNotFound: ("invalid_request_error", "session_not_found"),
    Conflict: ("conflict_error", "conflict"),
    Overloaded: ("rate_limit_error", "overloaded"),
    ServiceUnavailable: ("server_error", "service_unavailable"),
    DeadlineExceeded: ("server_error", "deadline_exceeded"),
}
"""OpenAI's `type` and `code` of each error."""


def error_body(error: AdasdError) -> dict[str, Any]:
    """`{"error": ...}` as a reply's body or as the data of a last event."""
    kind, code = next(KINDS[base] for base in type(error).__mro__ if base in KINDS)
    message = INTERNAL_MESSAGE if type(error) in _TELLS_NOTHING else str(error)
    return {"error": {"message": message, "type": kind, "param": getattr(error, "param", None), "code": code}}


def error_response(error: AdasdError, **extra: object) -> Response:
    """The reply for an error; `extra` fields stand beside `error` in the body."""
    status = status_of(error).http
    headers = {"Retry-After": str(RETRY_AFTER_SECONDS)} if status in (429, 503) else None
    return json_response({**error_body(error), **extra}, status, headers)


def http_error_response(error: HTTPException) -> Response:
    """The reply for what the router refuses: unknown path, wrong method, a body that is too large."""
    body = {"message": str(error.detail), "type": "invalid_request_error", "param": None, "code": None}
    return json_response({"error": body}, error.status_code, dict(error.headers or {}))


def json_response(body: object, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(orjson.dumps(body), status, headers, "application/json")
