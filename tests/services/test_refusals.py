"""What a service refuses, by name and before any work, and that the next call is fine."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from adasd.core.context import Context
from adasd.core.errors import (
    AdasdError,
    ContextLengthExceeded,
    InvalidDraft,
    InvalidRequest,
    NumericalFault,
    Overloaded,
    ServiceUnavailable,
)
from adasd.core.messages import DraftRequest, VerifyRequest
from adasd.core.rows import DenseRow, PointRow, dense_row, sparse_row
from adasd.core.types import Draft
from adasd.rpc.options import MessageLimits
from adasd.rpc.verifier import VerifierConnection
from adasd.runtime.device import DeviceThread
from adasd.runtime.loading import load_model
from adasd.runtime.options import RuntimeOptions
from tests.services.replicas import (
    LIMITS,
    PATIENCE,
    PROMPT,
    TARGET,
    draft,
    draft_request,
    drafting,
    fails,
    new_session,
    running,
    unloaded,
    until,
    verify,
    verify_request,
    verifying,
)


def block(count: int, token: int = 5) -> Draft:
    return Draft((token,) * count, (1.0,) * count, (PointRow(token),) * count)


TOO_WIDE = dense_row(np.full(65, 1 / 65))
ONE_OF_TWO = sparse_row(np.array([4, 5]), np.array([0.5, 0.5]))

REFUSED: list[tuple[str, VerifyRequest, type[AdasdError]]] = [
    ("one candidate too many", verify_request(Context(PROMPT), block(17)), InvalidDraft),
    ("far too many", verify_request(Context(PROMPT), block(10_000)), InvalidDraft),
    ("a candidate past the vocabulary", verify_request(Context(PROMPT), block(1, 64)), InvalidDraft),
    ("a context past the vocabulary", verify_request(Context((5, 64))), InvalidRequest),
    ("no context", verify_request(Context(())), InvalidRequest),
    ("an unknown rule", verify_request(Context(PROMPT), acceptance="typical"), InvalidRequest),
    ("no state", verify_request(Context(PROMPT), state=b""), InvalidRequest),
    ("a point elsewhere", verify_request(Context(PROMPT), Draft((5,), (1.0,), (PointRow(6),))), InvalidDraft),
    ("q(x) = 0", verify_request(Context(PROMPT), Draft((6,), (1.0,), (ONE_OF_TWO,))), InvalidDraft),
    (
        "a row that does not sum",
        verify_request(Context(PROMPT), Draft((1,), (1.0,), (DenseRow(np.ones(64, dtype=np.int64)),))),
        InvalidDraft,
    ),
    (
        "a row too wide",
        verify_request(Context(PROMPT), Draft((1,), (1.0,), (dense_row(np.full(65, 1 / 65)),))),
        InvalidDraft,
    ),
    ("a context too long", verify_request(Context([5] * 520)), ContextLengthExceeded),
]


@pytest.mark.parametrize(("request_", "kind"), [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED])
async def test_bad_messages_are_refused_and_the_next_call_is_fine(
    request_: VerifyRequest, kind: type[AdasdError]
) -> None:
    async with running("verifier") as verifier:
        error = await fails(verify(verifier, request_))
        assert type(error) is kind
        assert str(error)
        assert verifier.metric("forward_seconds_count") == 0, "refused before any work"
        assert len(await verify(verifier, verify_request(Context(PROMPT), block(16)))) >= 1
        assert len(await verify(verifier, verify_request(Context(PROMPT)))) == 1
        await until(lambda: verifier.sessions() == 0)


@pytest.mark.parametrize(
    "request_",
    [
        draft_request(Context(PROMPT), 17),
        draft_request(Context(PROMPT), 10_000),
        draft_request(Context((5, 64))),
        draft_request(Context(())),
    ],
)
async def test_the_drafter_refuses_what_it_cannot_do(request_: DraftRequest) -> None:
    async with running("drafter") as drafter:
        assert isinstance(await fails(draft(drafter, request_)), InvalidRequest)
        assert drafter.metric("forward_seconds_count") == 0
        assert len(await draft(drafter, draft_request(Context(PROMPT), 16))) == 16


async def test_one_stream_serves_one_session() -> None:
    async with running("verifier") as verifier, verifying(verifier) as stream:
        stream.send(verify_request(Context(PROMPT), session=new_session()))
        await stream.receive()
        stream.send(verify_request(Context(PROMPT), session=new_session()))
        assert isinstance(await fails(stream.receive()), InvalidRequest)


async def test_a_drafter_that_gives_nan_answers_an_empty_block() -> None:
    async with running("drafter", TARGET + ",nan_after=5") as drafter, drafting(drafter) as stream:
        for number in range(3):
            stream.send(draft_request(Context(PROMPT), 6, number))
            assert len((await stream.receive()).draft) == 0
        assert drafter.metric("errors_total", type="NumericalFault") == 3


async def test_a_verifier_that_gives_nan_says_so() -> None:
    async with running("verifier", TARGET + ",nan_after=4") as verifier:
        assert len(await verify(verifier, verify_request(Context(PROMPT)))) == 1
        error = await fails(verify(verifier, verify_request(Context((*PROMPT, 9)))))
        assert isinstance(error, NumericalFault)
        assert error.side == "target"
        assert len(await verify(verifier, verify_request(Context(PROMPT)))) == 1


async def test_a_bug_tells_the_peer_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async with running("verifier") as verifier:
        assert verifier.host._replica is not None
        batcher: Any = verifier.host._replica.batcher
        kernels, batcher._kernels = batcher._kernels, object()
        error = await fails(verify(verifier, verify_request(Context(PROMPT))))
        batcher._kernels = kernels
        assert len(await verify(verifier, verify_request(Context(PROMPT)))) == 1
    assert type(error) is AdasdError
    assert str(error) == "internal error"
    assert "AttributeError" in caplog.text


async def test_a_full_service_refuses_one_more_generation() -> None:
    async with running("verifier", max_streams=1) as verifier, verifying(verifier) as stream:
        stream.send(verify_request(Context(PROMPT)))
        await stream.receive()
        assert isinstance(await fails(verify(verifier, verify_request(Context(PROMPT)))), Overloaded)
        await stream.close()
        await until(lambda: verifier.metric("inflight_streams") == 0)
        assert len(await verify(verifier, verify_request(Context(PROMPT)))) == 1


async def test_nothing_is_served_while_the_model_loads() -> None:
    async with DeviceThread() as device:
        service = unloaded("verifier", device, work_seconds=60, max_streams=4, limits=LIMITS)
        service.port = await service.server.start("127.0.0.1", 0)
        connection = VerifierConnection(service.address, LIMITS)
        for call in (connection.info(PATIENCE), verify(service, verify_request(Context(PROMPT)))):
            error = await fails(call)
            assert isinstance(error, ServiceUnavailable)
            assert str(error) == "the model is being loaded"
        await service.host.load(lambda: load_model(TARGET, "target", RuntimeOptions()), "target", LIMITS.vocabulary)
        assert (await connection.info(PATIENCE)).model == service.host.info()
        assert len(await verify(service, verify_request(Context(PROMPT)))) == 1
        await connection.close()
        await service.server.drain(0)


async def test_a_message_over_the_limit_is_an_error_of_its_own() -> None:
    small = MessageLimits(vocabulary=1, candidates=1)
    block = Draft((1,), (0.0,), (DenseRow(np.zeros(3 * 2**20, dtype=np.int64)),))
    async with running("verifier") as verifier, verifying(verifier, small) as stream:
        with pytest.raises(AdasdError, match="at most"):
            stream.send(verify_request(Context(PROMPT), block))
        stream.send(verify_request(Context(PROMPT)))
        assert (await stream.receive()).base == len(PROMPT)
        assert len(await verify(verifier, verify_request(Context(PROMPT)))) == 1
