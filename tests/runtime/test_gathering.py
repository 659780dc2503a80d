"""Who a pass waits for."""

from __future__ import annotations

import threading

from adasd.runtime.gathering import MEMORY, Gathering

LONG = 60.0
"""A pass after which the wait may take LONGEST."""


def returned(gathering: Gathering, answered: int, arrived: int) -> None:
    """A pass after which so many come back in time."""
    for _ in range(answered):
        gathering.answered()
    gathering.ended(LONG)
    for _ in range(arrived):
        gathering.arrived()


def test_a_lone_stream_never_waits() -> None:
    gathering = Gathering()
    returned(gathering, 1, 1)
    assert not gathering.wait()


def test_who_is_back_before_the_pass_has_answered_everybody_is_not_waited_for() -> None:
    gathering = Gathering()
    for _ in range(4):
        gathering.answered()
        gathering.arrived()
    gathering.ended(LONG)
    assert not gathering.wait()


def together(gathering: Gathering, came: int) -> bool:
    """So many messages after none at all; whether the pass for them waited for more."""
    for number in range(came):
        gathering.arrived(first=number == 0)
    return gathering.wait()


def test_those_who_came_together_the_last_time_are_waited_for() -> None:
    gathering = Gathering()
    returned(gathering, 0, 0)  # a pass, so that it is known how long one takes
    assert not together(gathering, 3)
    assert together(gathering, 2)
    assert not together(gathering, 2)


def test_a_lone_message_after_a_lone_message_waits_for_nobody() -> None:
    gathering = Gathering()
    returned(gathering, 0, 0)
    assert [together(gathering, 1) for _ in range(3)] == [False] * 3


def test_company_that_seldom_comes_is_not_waited_for() -> None:
    gathering = Gathering()
    returned(gathering, 0, 0)
    for _ in range(2 * MEMORY):
        for number in range(4):
            gathering.arrived(first=number == 0)
        gathering.wait()
        together(gathering, 1)
    for number in range(4):
        gathering.arrived(first=number == 0)
    gathering.wait()
    assert not together(gathering, 1)


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
        gathering.wait()
    returned(gathering, 4, 0)
    assert not gathering.wait()
    for _ in range(2 * MEMORY):
        returned(gathering, 4, 4)
        gathering.wait()
    returned(gathering, 4, 1)
    assert gathering.wait()
