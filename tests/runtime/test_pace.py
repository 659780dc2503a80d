"""What passes take, found out before the first request."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from adasd.core.host import HostKernels
from adasd.runtime import pace as module
from adasd.runtime.base import Segment
from adasd.runtime.cores import SharedCores
from adasd.runtime.options import Role
from adasd.runtime.pace import TIMES, pace
from adasd.runtime.toy import ToyRuntime, ToySpec


class Cores(SharedCores):
    """Counts who takes them."""

    taken_times = 0
    held = still = False

    @contextmanager
    def quiet(self) -> Iterator[None]:
        self.still = True
        yield
        self.still = False

    @contextmanager
    def taken(self) -> Iterator[None]:
        self.taken_times, self.held = self.taken_times + 1, True
        yield
        self.held = False


class Clocked(ToyRuntime):
    """A pass takes a tenth of a second and a hundredth a row on a clock of its own, and three times that but the second
    time.
    """

    def __init__(self, spec: str, cores: Cores) -> None:
        super().__init__(ToySpec.parse(spec))
        self.now, self.cores, self.seen = 0.0, cores, list[tuple[int, int]]()

    def forward(self, batch: Sequence[Segment]) -> Any:
        assert self.cores.held
        assert self.cores.still
        (segment,) = batch
        second = self.seen.count((len(segment.ids), segment.rows)) == 1
        self.seen.append((len(segment.ids), segment.rows))
        self.now += (1 if second else 3) * (0.1 + 0.01 * len(segment.ids))
        return super().forward(batch)


def paced(
    monkeypatch: pytest.MonkeyPatch, role: Role, spec: str = "toy:seed=1,vocab=40,context=640"
) -> tuple[tuple[float, ...], Clocked]:
    runtime = Clocked(spec, Cores())
    monkeypatch.setattr(module.time, "perf_counter", lambda: runtime.now)
    return pace(runtime, HostKernels(None), role, runtime.cores), runtime


@pytest.mark.parametrize("role", ["target", "draft"])
def test_the_least_of_several_passes_counts_for_every_number_of_rows(
    monkeypatch: pytest.MonkeyPatch, role: Role
) -> None:
    monkeypatch.setattr(module, "SECONDS", 100.0)
    seconds, runtime = paced(monkeypatch, role)
    assert seconds == pytest.approx([0.1 + 0.01 * rows for rows in (1, 2, 4, 8, 16, 32, 64)])
    assert runtime.cores.taken_times == len(runtime.seen) == TIMES * 7
    assert {logits for _, logits in runtime.seen} == ({1} if role == "draft" else {1, 2, 4, 8, 16, 32, 64})
    assert runtime.allocated == 0


def test_slow_passes_are_tried_once_each_and_no_row_beyond_the_context(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SECONDS", 0.5)
    seconds, runtime = paced(monkeypatch, "target", "toy:seed=1,vocab=40,context=6")
    assert seconds == pytest.approx([3 * (0.1 + 0.01 * rows) for rows in (1, 2, 4)])
    assert len(runtime.seen) == 3


@pytest.mark.parametrize("fault", [None, RuntimeError("out of memory")], ids=str)
def test_a_model_that_is_no_good_or_has_no_room_says_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, fault: Exception | None
) -> None:
    def fail(*_: object) -> None:
        assert fault is not None
        raise fault

    if fault is not None:
        monkeypatch.setattr(HostKernels, "target", fail)
    seconds, runtime = paced(monkeypatch, "target", "toy:seed=1,vocab=40" + ("" if fault else ",nan_after=0"))
    assert (seconds, runtime.allocated) == ((), 0)
    assert "passes could not be timed" in caplog.text
