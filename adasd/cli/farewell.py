"""Being asked to stop, once or many times over, at any moment."""

from __future__ import annotations

import os
import select
import signal
from contextlib import suppress
from types import FrameType


class Farewell:
    """SIGINT or SIGTERM, as something to wait for.

    Signals interrupt one another's handlers: a `threading.Event` that is set from one would wait for the lock that the
    handler below it holds, for ever. A byte into a pipe takes no lock.
    """

    def __init__(self) -> None:
        """For the rest of the process; on the main thread."""
        self._asked, self._ask = os.pipe()
        os.set_blocking(self._ask, False)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._handle)

    def wait(self, seconds: float) -> bool:
        """Whether it has come, or comes within so many seconds."""
        return bool(select.select([self._asked], [], [], seconds)[0])

    def _handle(self, _number: int, _frame: FrameType | None) -> None:
        with suppress(BlockingIOError):  # the pipe is full: it has been said
            os.write(self._ask, b"!")
