"""Whether drafter and verifier fit together, as the gateway finds out."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from adasd.core.context import Context
from adasd.core.types import Draft, DraftPlan
from adasd.rpc.info import PROTOCOL, PeerInfo
from adasd.rpc.options import MessageLimits
from services.gateway.costs import LiveCosts
from services.gateway.handshake import Handshake, mismatch
from services.gateway.remote_drafter import DrafterClient
from services.gateway.remote_options import RemoteOptions
from services.gateway.remote_verifier import VerifierClient
from tests.rpc.messages import INFO
from tests.services.replicas import LIMITS, PROMPT, SAMPLING, TARGET, new_session, running, until

PEER = PeerInfo(INFO, PROTOCOL)


@pytest.mark.parametrize(
    ("peer", "words"),
    [
        (PeerInfo(INFO, "adasd.rpc.v0"), ["adasd.rpc.v0", PROTOCOL]),
        (PeerInfo(INFO, ""), ["no protocol version"]),
        (
            PeerInfo(replace(INFO, name="other", vocabulary_fingerprint="f00"), PROTOCOL),
            ["'other'", "vocabulary", "f00"],
        ),
        (PeerInfo(replace(INFO, eos_ids=(0,)), PROTOCOL), ["[0]", "[0, 3]"]),
    ],
)
def test_a_mismatch_is_named(peer: PeerInfo, words: list[str]) -> None:
    reason = mismatch(PEER, peer)
    assert reason is not None
    assert all(word in reason for word in words)


@pytest.mark.parametrize("change", [{"vocabulary": 300}, {"vocabulary": 257}, {"eos_ids": (3, 0)}, {"support": 10}])
def test_padding_and_order_do_not_matter(change: dict[str, Any]) -> None:
    assert mismatch(PEER, PeerInfo(replace(INFO, **change), PROTOCOL)) is None


IGNORED = LiveCosts()


@asynccontextmanager
async def shaking(
    verifier: str, drafter: str, limits: MessageLimits = LIMITS, costs: LiveCosts = IGNORED
) -> AsyncIterator[tuple[Handshake, DrafterClient]]:
    options = RemoteOptions(drafter=(drafter,), verifier=(verifier,), limits=limits)
    verifiers, drafters = VerifierClient(options), DrafterClient(options)
    handshake = Handshake(verifiers, drafters, costs.told)
    handshake.start()
    try:
        yield handshake, drafters
    finally:
        await handshake.close()
        await drafters.close()
        await verifiers.close()


NOBODY = "127.0.0.1:1"


async def test_costs_begin_with_what_passes_took_where_the_models_run() -> None:
    costs = LiveCosts()
    async with (
        running("verifier", "toy:seed=1,vocab=300,delay_ms=20") as verifier,
        running("drafter", "toy:seed=1,vocab=300,delay_ms=5") as drafter,
        shaking(verifier.address, drafter.address, costs=costs) as (handshake, _),
    ):
        await until(lambda: handshake.problem() is None and handshake.drafter is not None)
        assert handshake.verifier is not None
        assert handshake.verifier.passes == verifier.host.info().passes
        assert costs.runs_ahead
        profile = costs.profile()
        assert profile.verify[0] >= 0.02
        assert profile.draft == drafter.host.info().passes[0] >= 0.005


async def test_services_that_fit_leave_no_problem() -> None:
    padded = "toy:seed=2,vocab=320"
    async with (
        running("verifier", "toy:seed=1,vocab=300") as verifier,
        running("drafter", padded) as drafter,
        shaking(verifier.address, drafter.address) as (handshake, _),
    ):
        assert "no verifier answers" in (handshake.problem() or "")
        await until(lambda: handshake.problem() is None and handshake.drafter is not None)
        assert handshake.verifier == verifier.host.info()
        assert handshake.drafter == drafter.host.info()


async def test_a_foreign_vocabulary_is_named_and_its_drafter_not_asked() -> None:
    async with (
        running("verifier") as verifier,
        running("drafter", "toy:seed=2,vocab=100") as drafter,
        shaking(verifier.address, drafter.address) as (handshake, drafters),
    ):
        await until(lambda: drafters.refusal is not None)
        reason = handshake.problem() or ""
        assert drafter.address in reason
        assert "'toy-2' has another vocabulary than 'toy-1'" in reason
        block = await drafters.open(new_session(), SAMPLING).propose(Context(PROMPT), DraftPlan(4), 0)
        assert block == Draft()


async def test_a_drafter_replaced_by_one_that_fits_is_asked_again() -> None:
    async with AsyncExitStack() as first, running("verifier") as verifier:
        foreign = await first.enter_async_context(running("drafter", "toy:seed=2,vocab=100"))
        async with shaking(verifier.address, foreign.address) as (handshake, drafters):
            await until(lambda: drafters.refusal is not None)
            await first.aclose()
            async with running("drafter", TARGET, port=foreign.port):
                await until(lambda: drafters.refusal is None)
                assert handshake.problem() is None


async def test_a_missing_drafter_is_no_problem_and_a_missing_verifier_is() -> None:
    async with AsyncExitStack() as first:
        verifier = await first.enter_async_context(running("verifier"))
        async with shaking(verifier.address, NOBODY) as (handshake, _):
            await until(lambda: handshake.problem() is None)
            await first.aclose()
            await until(lambda: verifier.address in (handshake.problem() or ""))
            assert handshake.verifier is not None
            async with running("verifier", port=verifier.port):
                await until(lambda: handshake.problem() is None)


async def test_a_vocabulary_that_messages_have_no_room_for_is_named() -> None:
    async with (
        running("verifier") as verifier,
        shaking(verifier.address, NOBODY, MessageLimits(10, 4)) as (handshake, _),
    ):
        await until(lambda: "messages here are sized for 10" in (handshake.problem() or ""))


def test_the_gateways_clients_do_not_reach_torch() -> None:
    code = (
        "import sys, services.gateway.handshake; "
        "print([name for name in ('torch', 'transformers', 'adasd.runtime', 'adasd.kernels') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
