"""The thread that owns the device. Events, never clocks: a call runs until the test lets it go."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator

import pytest

from adasd.core.errors import InvalidRequest, Overloaded, ServiceUnavailable
from adasd.runtime.device import DeviceThread

PATIENCE = 30.0


class Gate:
    """A call that says when it began and ends when told to."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.open = threading.Event()

    def __call__(self) -> str:
        self.begun.set()
        assert self.open.wait(PATIENCE)
        return "through"

    async def until_begun(self) -> None:
        assert await asyncio.to_thread(self.begun.wait, PATIENCE)


@pytest.fixture
async def device() -> AsyncIterator[DeviceThread]:
    async with DeviceThread(capacity=3) as device:
        yield device


async def test_calls_run_in_order_on_one_other_thread(device: DeviceThread) -> None:
    seen: list[tuple[int, int]] = []

    def note(number: int) -> int:
        seen.append((number, threading.get_ident()))
        return number * 2

    assert await asyncio.gather(*(device.run(note, i) for i in range(3))) == [0, 2, 4]
    assert [number for number, _ in seen] == [0, 1, 2]
    assert len({thread for _, thread in seen} - {threading.get_ident()}) == 1
    assert device.pending == 0


async def test_an_exception_reaches_its_caller_and_nobody_else(device: DeviceThread) -> None:
    with pytest.raises(ZeroDivisionError):
        await device.run(lambda: 1 // 0)
    assert await device.run(max, 1, 2) == 2


async def test_the_loop_goes_on_while_a_call_runs(device: DeviceThread) -> None:
    gate = Gate()
    running = asyncio.create_task(device.run(gate))
    await gate.until_begun()
    await asyncio.sleep(0)
    assert not running.done()
    gate.open.set()
    assert await running == "through"


async def test_a_full_queue_is_refused_and_recovers(device: DeviceThread) -> None:
    gate = Gate()
    tasks = [asyncio.create_task(device.run(gate)) for _ in range(3)]
    await gate.until_begun()
    assert device.pending == 3
    with pytest.raises(Overloaded, match="3 calls"):
        await device.run(max, 1, 2)
    gate.open.set()
    await asyncio.gather(*tasks)
    assert await device.run(max, 1, 2) == 2


async def test_a_cancelled_caller_leaves_the_thread_alive(device: DeviceThread) -> None:
    gate = Gate()
    running = asyncio.create_task(device.run(gate))
    await gate.until_begun()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert device.pending == 1
    gate.open.set()
    assert await device.run(max, 1, 2) == 2


async def test_a_cancelled_call_that_has_not_begun_never_runs_and_frees_its_place(device: DeviceThread) -> None:
    gate, ran = Gate(), threading.Event()
    running = asyncio.create_task(device.run(gate))
    await gate.until_begun()
    waiting = [asyncio.create_task(device.run(ran.set)) for _ in range(2)]
    await asyncio.sleep(0)
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    assert device.pending == 1
    gate.open.set()
    await running
    await device.run(max, 1, 2)
    assert not ran.is_set()


async def test_close_waits_for_the_running_call_and_turns_the_others_away() -> None:
    device, gate = DeviceThread(), Gate()
    running = asyncio.create_task(device.run(gate))
    await gate.until_begun()
    waiting = asyncio.create_task(device.run(max, 1, 2))
    await asyncio.sleep(0)
    closing = asyncio.create_task(device.close())
    with pytest.raises(ServiceUnavailable, match="before this call began"):
        await waiting
    with pytest.raises(ServiceUnavailable):
        await device.run(max, 1, 2)
    assert not closing.done()
    gate.open.set()
    assert await running == "through"
    await closing
    await device.close()


async def test_a_cancellation_during_shutdown_stays_a_cancellation() -> None:
    device, gate = DeviceThread(), Gate()
    running = asyncio.create_task(device.run(gate))
    await gate.until_begun()
    waiting = asyncio.create_task(device.run(max, 1, 2))
    await asyncio.sleep(0)
    closing = asyncio.create_task(device.close())
    await asyncio.sleep(0)
    assert not waiting.done()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    gate.open.set()
    await asyncio.gather(running, closing)


def test_capacity_must_be_positive() -> None:
    with pytest.raises(InvalidRequest):
        DeviceThread(capacity=0)
