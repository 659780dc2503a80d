"""The error table, and errors crossing the wire."""

from __future__ import annotations

from collections.abc import Iterator

import grpc
import grpc.aio
import pytest

from adasd.core import errors
from adasd.core.errors import AdasdError, InvalidRequest, NumericalFault
from adasd.rpc.status import STATUS, error_of, status_of, trailing_metadata


def subclasses(kind: type[AdasdError]) -> Iterator[type[AdasdError]]:
    yield kind
    for child in kind.__subclasses__():
        yield from subclasses(child)


DEFINED = {kind for kind in subclasses(AdasdError) if kind.__module__ == errors.__name__}


def test_every_error_has_a_row() -> None:
    assert set(STATUS) == DEFINED


@pytest.mark.parametrize(
    ("name", "code", "http"),
    [
        ("InvalidRequest", "INVALID_ARGUMENT", 400),
        ("ContextLengthExceeded", "INVALID_ARGUMENT", 400),
        ("SessionNotFound", "NOT_FOUND", 404),
        ("Conflict", "ABORTED", 409),
        ("Unauthenticated", "UNAUTHENTICATED", 401),
        ("Overloaded", "RESOURCE_EXHAUSTED", 429),
        ("RateLimited", "RESOURCE_EXHAUSTED", 429),
        ("ServiceUnavailable", "UNAVAILABLE", 503),
        ("DeadlineExceeded", "DEADLINE_EXCEEDED", 504),
        ("InvalidDraft", "INVALID_ARGUMENT", 500),
        ("NumericalFault", "INTERNAL", 500),
        ("AdasdError", "INTERNAL", 500),
    ],
)
def test_the_table(name: str, code: str, http: int) -> None:
    assert status_of(getattr(errors, name)("")) == (grpc.StatusCode[code], http)


def received(error: AdasdError) -> AdasdError:
    metadata = grpc.aio.Metadata(*trailing_metadata(error))
    return error_of(grpc.aio.AioRpcError(status_of(error).code, grpc.aio.Metadata(), metadata, str(error), ""))


@pytest.mark.parametrize("kind", sorted(DEFINED, key=str))
def test_the_caller_raises_what_the_callee_raised(kind: type[AdasdError]) -> None:
    error = received(kind("why it failed"))
    assert type(error) is kind
    assert str(error) == "why it failed"


def test_what_an_error_carries_travels_too() -> None:
    refused = received(InvalidRequest("no", "top_p, größer"))
    fault = received(NumericalFault("NaN", "draft"))
    assert isinstance(refused, InvalidRequest)
    assert isinstance(fault, NumericalFault)
    assert (refused.param, fault.side) == ("top_p, größer", "draft")


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (grpc.StatusCode.UNAVAILABLE, errors.ServiceUnavailable),
        (grpc.StatusCode.CANCELLED, errors.ServiceUnavailable),
        (grpc.StatusCode.DEADLINE_EXCEEDED, errors.DeadlineExceeded),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, AdasdError),
        (grpc.StatusCode.INTERNAL, errors.ServiceUnavailable),
        (grpc.StatusCode.UNKNOWN, AdasdError),
        (grpc.StatusCode.UNIMPLEMENTED, AdasdError),
    ],
)
def test_statuses_that_grpc_itself_answers_with(code: grpc.StatusCode, kind: type[AdasdError]) -> None:
    """RESOURCE_EXHAUSTED without a type is a message over the limit: sent again it would fail again."""
    error = error_of(grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), "details", ""))
    assert type(error) is kind
    assert "details" in str(error)


def test_a_subclass_from_elsewhere_takes_its_bases_row() -> None:
    class TooLong(InvalidRequest):
        pass

    assert status_of(TooLong("no")) == STATUS[InvalidRequest]
