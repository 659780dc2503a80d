"""Coroutines that share a batch, and what happens to those that wait when things end."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import numpy as np
import pytest

from adasd.core.context import context_hash
from adasd.core.errors import Overloaded, ServiceUnavailable
from adasd.core.host import HostKernels
from adasd.core.messages import ContextDelta, DraftRequest, Timing
from adasd.core.types import Draft, DraftPlan, SamplingParams
from adasd.runtime.device import DeviceThread
from adasd.runtime.engine import Engine
from adasd.runtime.replica import Replica
from adasd.runtime.toy import ToyRuntime, ToySpec


def replica(delay_ms: float = 0.0) -> Replica[Any]:
    return Replica(ToyRuntime(ToySpec(seed=1, vocab=32, eos_bias=-np.inf, delay_ms=delay_ms)), HostKernels(None))


def request(number: int) -> DraftRequest:
    ids = [1 + (number * 7 + i) % 31 for i in range(4)]
    context = ContextDelta(bytes([number]) * 16, len(ids), len(ids), 0, ids, context_hash(ids))
    return DraftRequest(context, SamplingParams(seed=number), DraftPlan(6), 0)


async def drafted(engine: Engine, number: int) -> Draft:
    draft, timing = await engine.run(lambda held: held.draft_steps(request(number)), lambda: False)
    assert timing.forwards == 6
    assert min(timing.queue, timing.forward, timing.rules) >= 0
    return draft


async def test_messages_share_batches_and_get_what_they_would_alone() -> None:
    sizes: list[int] = []
    async with DeviceThread() as device:
        engine = Engine(device, replica(delay_ms=2), 64, sizes.append)
        drafts = await asyncio.gather(*(drafted(engine, number) for number in range(12)))
    assert [draft.ids for draft in drafts] == [replica().propose(request(number)).ids for number in range(12)]
    assert max(sizes) > 6
    assert sum(sizes) == 12 * 6


async def test_what_is_under_way_hears_of_who_arrives(monkeypatch: pytest.MonkeyPatch) -> None:
    held, heard = replica(), []
    monkeypatch.setattr(held.batcher, "disturb", heard.append)
    async with DeviceThread() as device:
        await drafted(Engine(device, held, 64), 1)
    assert heard[:2] == [True, False]
    assert set(heard[2:]) <= {False}


async def test_one_message_too_many_is_refused() -> None:
    async with DeviceThread() as device:
        engine = Engine(device, replica(delay_ms=5), 1)
        running = asyncio.create_task(drafted(engine, 1))
        await asyncio.sleep(0)
        with pytest.raises(Overloaded):
            await drafted(engine, 2)
        assert len(await running) == 6
        assert len(await drafted(engine, 2)) == 6


async def test_who_no_longer_waits_leaves_the_batch() -> None:
    held = replica(delay_ms=5)
    async with DeviceThread() as device:
        engine = Engine(device, held, 8)
        given_up = asyncio.create_task(drafted(engine, 1))
        await asyncio.sleep(0.01)
        given_up.cancel()
        assert len(await drafted(engine, 2)) == 6
        async with asyncio.timeout(5):
            while held.batcher.jobs:  # noqa: ASYNC110 - nothing tells of it
                await asyncio.sleep(0.001)


async def test_other_calls_come_between_two_steps() -> None:
    held = replica(delay_ms=20)
    async with DeviceThread() as device:
        drafting = asyncio.create_task(drafted(Engine(device, held, 8), 1))
        await asyncio.sleep(0.01)
        assert await device.run(lambda: held.batcher.passes) < 6
        assert len(await drafting) == 6


async def test_closing_the_device_leaves_nobody_waiting() -> None:
    device = DeviceThread()
    engine = Engine(device, replica(delay_ms=5), 8)
    waiting = [asyncio.create_task(drafted(engine, number)) for number in range(3)]
    await asyncio.sleep(0.01)
    await device.close()
    async with asyncio.timeout(5):
        ended = await asyncio.gather(*waiting, return_exceptions=True)
    assert all(isinstance(error, ServiceUnavailable) for error in ended)
    with pytest.raises(ServiceUnavailable):
        await drafted(engine, 9)


async def test_what_is_cancelled_before_its_step_touches_no_session() -> None:
    """Its stream may have ended, and the session been released: it must not come back."""
    held = replica()
    async with DeviceThread() as device:
        engine = Engine(device, held, 8)
        with pytest.raises(ServiceUnavailable):
            await engine.run(lambda asked: asked.draft_steps(request(1)), lambda: True)
        assert len(held._sessions) == 0
        assert len(await drafted(engine, 1)) == 6


async def test_a_message_that_finds_the_device_busy_is_told_how_long_it_waited_for_it() -> None:
    held, begun, go_on = replica(), threading.Event(), threading.Event()
    forward = held._runtime.forward

    def slow(segments: Any) -> Any:
        begun.set()
        go_on.wait(10)
        return forward(segments)

    held._runtime.forward = slow  # type: ignore[method-assign]
    async with DeviceThread() as device:
        engine = Engine(device, held, 8)

        async def timed(number: int) -> Timing:
            _, timing = await engine.run(lambda held: held.draft_steps(request(number)), lambda: False)
            return timing

        first = asyncio.create_task(timed(1))
        await asyncio.to_thread(begun.wait, 10)
        second = asyncio.create_task(timed(2))
        await asyncio.sleep(0.05)
        go_on.set()
        told = await first, await second
    assert told[1].queue > 0.04
    assert told[0].queue < told[1].queue
