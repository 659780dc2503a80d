"""One table from error class to gRPC code and HTTP status, and the way an error travels between the services.

The code serves those who look from outside; the class, and what the class carries, go in trailing metadata, so that the
caller raises what the callee raised. An exception that is not ours tells the peer nothing: INTERNAL of type AdasdError,
and a traceback in the log of the side it happened on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, cast

import grpc
import grpc.aio

from adasd.core.errors import (
    AdasdError,
    Conflict,
    ContextLengthExceeded,
    DeadlineExceeded,
    GrammarFault,
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

ERROR_TYPE = "adasd-error-type"
EXTRAS = ("param", "side")
"""Attributes of an error that travel beside its message, as `adasd-error-<name>-bin`."""
INTERNAL_MESSAGE = "internal error"
MAX_MESSAGE_CHARACTERS = 1024
"""Trailing metadata is bounded; a longer message is cut."""


class Status(NamedTuple):
    code: grpc.StatusCode
    http: int


STATUS: dict[type[AdasdError], Status] = {
    AdasdError: Status(grpc.StatusCode.INTERNAL, 500),
    InvalidRequest: Status(grpc.StatusCode.INVALID_ARGUMENT, 400),
    ContextLengthExceeded: Status(grpc.StatusCode.INVALID_ARGUMENT, 400),
    ModelNotFound: Status(grpc.StatusCode.INVALID_ARGUMENT, 404),
    GrammarFault: Status(grpc.StatusCode.INVALID_ARGUMENT, 400),
    InvalidDraft: Status(grpc.StatusCode.INVALID_ARGUMENT, 500),
    NumericalFault: Status(grpc.StatusCode.INTERNAL, 500),
    SessionNotFound: Status(grpc.StatusCode.NOT_FOUND, 404),
    Conflict: Status(grpc.StatusCode.ABORTED, 409),
    Unauthenticated: Status(grpc.StatusCode.UNAUTHENTICATED, 401),
    Overloaded: Status(grpc.StatusCode.RESOURCE_EXHAUSTED, 429),
    RateLimited: Status(grpc.StatusCode.RESOURCE_EXHAUSTED, 429),
    ServiceUnavailable: Status(grpc.StatusCode.UNAVAILABLE, 503),
    DeadlineExceeded: Status(grpc.StatusCode.DEADLINE_EXCEEDED, 504),
}

_CLASSES: dict[str, Callable[..., AdasdError]] = {kind.__name__: kind for kind in STATUS}

_UNTYPED: dict[grpc.StatusCode, Callable[..., AdasdError]] = {
    grpc.StatusCode.UNAVAILABLE: ServiceUnavailable,
    grpc.StatusCode.CANCELLED: ServiceUnavailable,  # a server that stops cancels what its grace did not finish
    grpc.StatusCode.INTERNAL: ServiceUnavailable,  # a connection that broke in mid-write; our own faults have a type
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineExceeded,
}
"""What a code means that gRPC itself answered with."""


def status_of(error: AdasdError) -> Status:
    """The row of an error; a class without one of its own takes its nearest base's."""
    return next(STATUS[kind] for kind in type(error).__mro__ if kind in STATUS)


def trailing_metadata(error: AdasdError) -> tuple[tuple[str, str | bytes], ...]:
    """The error's type and extras; the message itself travels as the status details."""
    extras = {name: getattr(error, name, None) for name in EXTRAS}
    sent = [(f"adasd-error-{name}-bin", str(value).encode()) for name, value in extras.items() if value is not None]
    return ((ERROR_TYPE, type(error).__name__), *sent)


def error_of(failure: grpc.aio.AioRpcError) -> AdasdError:
    """The error behind a failed call: the class its metadata names, else what the code means."""
    metadata = _metadata(failure)
    message = failure.details() or failure.code().name
    raised = _CLASSES.get(str(metadata.get(ERROR_TYPE)))
    if raised is not None:
        return raised(message, **_extras(metadata))
    meant = _UNTYPED.get(failure.code(), AdasdError)
    return meant(f"{failure.code().name}: {message}")


def is_answer(failure: grpc.aio.AioRpcError) -> bool:
    """Whether the peer's own code said so, not gRPC on either side."""
    return ERROR_TYPE in _metadata(failure)


def is_grpcs_own_fault(failure: grpc.aio.AioRpcError) -> bool:
    """Whether gRPC itself failed, and said so in place of the peer."""
    return failure.code() is grpc.StatusCode.INTERNAL and not is_answer(failure)


def _metadata(failure: grpc.aio.AioRpcError) -> dict[str, str | bytes]:
    return dict(cast("Iterable[tuple[str, str | bytes]]", failure.trailing_metadata() or ()))


def _extras(metadata: Mapping[str, str | bytes]) -> dict[str, str]:
    received = {name: metadata.get(f"adasd-error-{name}-bin") for name in EXTRAS}
    return {name: value.decode(errors="replace") for name, value in received.items() if isinstance(value, bytes)}
