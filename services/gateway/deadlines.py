"""Timeouts for what is waited for again and again, as every round is."""

from __future__ import annotations

import asyncio
from types import TracebackType


class Deadline:
    """As `asyncio.timeout`, but with a timer that runs on from one wait to the next: setting and cancelling one takes
    longer than most waits have work. One wait at a time; the timer outlives the last by no more than its seconds.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._timer: asyncio.TimerHandle | None = None
        self._waiting: asyncio.Task[object] | None = None
        self._due = 0.0
        self._cancelled_before = 0
        self._expired = False

    def __enter__(self) -> None:
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert task is not None, "only tasks wait"
        assert self._waiting is None, "one wait at a time"
        self._waiting, self._cancelled_before, self._expired = task, task.cancelling(), False
        self._due = loop.time() + self._seconds
        if self._timer is None:
            self._timer = loop.call_at(self._due, self._rang, loop)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Raises TimeoutError where the time was up."""
        task, self._waiting = self._waiting, None
        assert task is not None
        if self._expired and task.uncancel() <= self._cancelled_before and kind is asyncio.CancelledError:
            raise TimeoutError from error

    def _rang(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        if self._waiting is None or self._expired:
            return
        if loop.time() < self._due:  # it was set for an earlier wait
            self._timer = loop.call_at(self._due, self._rang, loop)
            return
        self._expired = True
        self._waiting.cancel()
