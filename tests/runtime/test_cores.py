"""Passes of processes that share cores."""

from __future__ import annotations

import fcntl
import multiprocessing
import threading
from contextlib import ExitStack
from multiprocessing.synchronize import Event
from pathlib import Path

import pytest

from adasd.core.errors import InvalidRequest
from adasd.runtime import cores
from adasd.runtime.cores import SharedCores


def hold(path: Path, taken: Event, let_go: Event) -> None:
    with SharedCores(path).taken():
        taken.set()
        let_go.wait()


@pytest.mark.parametrize("killed", [False, True], ids=["ends its pass", "is killed in it"])
def test_a_pass_waits_for_the_other_process(tmp_path: Path, killed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "PATIENCE", 60.0)
    context = multiprocessing.get_context("spawn")
    taken, let_go, order = context.Event(), context.Event(), []
    other = context.Process(target=hold, args=(tmp_path / "lock", taken, let_go))
    other.start()
    taken.wait()

    def looked(_: float) -> None:
        order.append("waited")
        other.kill() if killed else let_go.set()
        other.join()

    monkeypatch.setattr(cores.time, "sleep", looked)
    with SharedCores(tmp_path / "lock").taken():
        order.append("passed")
    assert order == ["waited", "passed"]


def test_whoever_is_stopped_in_a_pass_is_waited_for_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "PATIENCE", 0.05)
    waits: list[float] = []
    monkeypatch.setattr(cores.time, "sleep", waits.append)
    mine, stopped = SharedCores(tmp_path / "lock"), SharedCores(tmp_path / "lock")
    with stopped.taken():
        with mine.taken():
            assert waits
        waits.clear()
        with mine.taken():
            assert not waits
    with mine.taken(), stopped.taken():
        assert waits, "whoever was stopped waits in turn"


def test_nothing_is_measured_while_somebody_loads_a_model_or_measures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Models are loaded side by side. One that never comes to an end is not waited for for ever."""
    mine, other, third = (SharedCores(tmp_path / "lock") for _ in range(3))
    waits = list[float]()

    def slept(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3:
            loading.close()

    monkeypatch.setattr(cores.time, "sleep", slept)
    with ExitStack() as loading:
        loading.enter_context(other.loading())
        with third.loading():
            assert not waits
        with mine.quiet():
            assert len(waits) == 3
    waits.clear()
    monkeypatch.setattr(cores, "START", 0.05)
    with other.quiet(), third.loading():
        assert len(waits) > 3


def test_without_a_file_nobody_waits() -> None:
    with SharedCores().taken(), SharedCores().taken(), SharedCores().loading(), SharedCores().quiet():
        pass


def test_a_path_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="shared_cores"):
        SharedCores(tmp_path / "nowhere" / "lock")


def test_whoever_waits_is_next(tmp_path: Path) -> None:
    """Passes that follow one another at once leave a moment between them that a waiting process would not see."""
    mine, other = SharedCores(tmp_path / "lock"), SharedCores(tmp_path / "lock")
    order = list[str]()

    def wait() -> None:
        with other.taken():
            order.append("other")

    waiting = threading.Thread(target=wait)
    with mine.taken():
        waiting.start()
        while not is_taken(tmp_path / "lock.next"):
            pass
    with mine.taken():
        order.append("mine")
    waiting.join()
    assert order == ["other", "mine"]


def is_taken(path: Path) -> bool:
    with path.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def test_whoever_is_stopped_while_waiting_holds_nobody_up_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others still take turns."""
    monkeypatch.setattr(cores, "PATIENCE", 0.05)
    waits: list[float] = []
    monkeypatch.setattr(cores.time, "sleep", waits.append)
    mine, other = SharedCores(tmp_path / "lock"), SharedCores(tmp_path / "lock")
    with (tmp_path / "lock.next").open() as stopped:
        fcntl.flock(stopped, fcntl.LOCK_EX)
        with mine.taken():
            assert waits
            assert is_taken(tmp_path / "lock")
        waits.clear()
        with mine.taken():
            assert not waits
        with other.taken():
            waits.clear()
            with mine.taken():
                assert waits
    with mine.taken():
        assert not is_taken(tmp_path / "lock.next"), "and once it goes on all is as before"
