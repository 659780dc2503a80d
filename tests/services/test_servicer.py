"""The verifier's side of a stream, without a network."""

from __future__ import annotations

from dataclasses import replace

import pytest

from adasd.core.context import Context
from services.verifier.servicer import VerifierServicer
from tests.services.replicas import PROMPT, running, verify_request


@pytest.mark.parametrize("ahead", [False, True])
async def test_passes_wait_for_sessions_that_may_ask_again_and_for_no_others(ahead: bool) -> None:
    waited_for = []
    async with running("verifier") as service:
        servicer = VerifierServicer(service.host, 4, ahead)
        service.host.engine.expect = lambda: waited_for.append(1)  # type: ignore[method-assign]
        context = Context(PROMPT)
        async with servicer.generation() as generation:
            first = await generation.verify(verify_request(context))
            context.extend(first.verdict.tokens)
            assert len(waited_for) == 1
            await generation.verify(replace(verify_request(context, round_number=1), next_round="none"))
            assert len(waited_for) == 1
