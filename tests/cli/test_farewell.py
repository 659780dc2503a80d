"""A process that is asked to stop again and again, also while it is being asked."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from adasd.cli import farewell
from adasd.cli.farewell import Farewell


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_waits_until_it_is_asked(number: int) -> None:
    asked = Farewell()
    assert not asked.wait(0.01)
    signal.raise_signal(number)
    assert asked.wait(0)
    assert asked.wait(60), "and stays asked"


def test_signals_within_a_signal_and_more_than_a_pipe_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, write, nested = Farewell(), os.write, list[int]()

    def interrupted(place: int, text: bytes) -> int:
        if len(nested) < 50:
            nested.append(place)
            signal.raise_signal(signal.SIGTERM)
        return write(place, text)

    monkeypatch.setattr(farewell.os, "write", interrupted)
    for _ in range(70_000):
        signal.raise_signal(signal.SIGINT)
    assert len(nested) == 50
    assert asked.wait(0)
