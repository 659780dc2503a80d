"""Deadlines that are waited for again and again: as `asyncio.timeout`, whatever came before."""

from __future__ import annotations

import asyncio
import time

import pytest

from services.gateway.deadlines import Deadline

SHORT = 0.05


async def test_what_takes_too_long_is_cut_each_time_after_its_own_seconds() -> None:
    deadline = Deadline(SHORT)
    for _ in range(3):
        begin = time.monotonic()
        with pytest.raises(TimeoutError), deadline:
            await asyncio.sleep(10)
        assert SHORT * 0.9 < time.monotonic() - begin < 1.0
    assert not asyncio.current_task().cancelling()  # type: ignore[union-attr]


async def test_a_wait_has_all_its_seconds_however_long_the_timer_has_run() -> None:
    deadline = Deadline(2 * SHORT)
    for _ in range(6):  # longer than the deadline altogether
        with deadline:
            await asyncio.sleep(SHORT)
    with deadline:
        pass
    await asyncio.sleep(3 * SHORT)  # it rings while nobody waits
    with pytest.raises(TimeoutError), deadline:
        await asyncio.sleep(10)


async def test_an_error_stays_itself() -> None:
    deadline = Deadline(SHORT)
    with pytest.raises(ValueError, match="mine"), deadline:
        raise ValueError("mine")


async def test_a_cancellation_from_outside_stays_one() -> None:
    async def wait(seconds: float) -> None:
        with Deadline(seconds):
            await asyncio.sleep(10)

    for seconds in (SHORT, 10.0):
        task = asyncio.create_task(wait(seconds))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait({task})
        assert task.cancelled()


async def test_a_cancellation_beside_the_deadline_is_not_lost() -> None:
    async def wait() -> None:
        with Deadline(SHORT):
            try:
                await asyncio.sleep(10)
            finally:
                me.cancel()
                await asyncio.sleep(0)

    me = asyncio.create_task(wait())
    await asyncio.wait({me})
    assert me.cancelled()


async def test_the_outer_of_two_is_told_from_the_inner() -> None:
    async def wait(inner: Deadline) -> None:
        try:
            with inner:
                await asyncio.sleep(10)
        except TimeoutError:
            pytest.fail("the inner one had time left")

    with pytest.raises(TimeoutError), Deadline(SHORT):
        await wait(Deadline(10.0))


async def test_no_seconds_at_all_end_at_the_first_wait() -> None:
    with pytest.raises(TimeoutError), Deadline(0.0):
        await asyncio.sleep(10)
