"""Who a pass waits for."""

from __future__ import annotations

import threading

from adasd.runtime.gathering import MEMORY, Gathering

LONG = 60.0
"""A pass after which the wait may take LONGEST."""


def returned(gathering: Gathering, answered: int, arrived: int) -> None:
    """A pass after which so many come back in time."""
    gathering.answered(answered, LONG)
    for _ in range(arrived):
        gathering.arrived()


def test_a_lone_stream_never_waits() -> None:
    gathering = Gathering()
    returned(gathering, 1, 1)
    assert not gathering.wait()


def test_the_first_one_back_waits_for_the_others() -> None:
    gathering = Gathering()
    returned(gathering, 3, 1)
    begun = threading.Event()

    def begin() -> None:
        gathering.wait()
        begun.set()

    thread = threading.Thread(target=begin)
    thread.start()
    gathering.arrived()
    gathering.arrived()
    assert begun.wait(LONG)
    thread.join()


def test_the_wait_ends_by_itself() -> None:
    gathering = Gathering()
    returned(gathering, 3, 0)
    assert gathering.wait()
    assert not gathering.wait()


def test_who_does_not_come_back_in_time_is_not_waited_for_until_most_do() -> None:
    gathering = Gathering()
    for _ in range(2 * MEMORY):
        returned(gathering, 4, 0)
    assert not gathering.wait()
    for _ in range(2 * MEMORY):
        returned(gathering, 4, 4)
    returned(gathering, 4, 1)
    assert gathering.wait()
