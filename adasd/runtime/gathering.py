"""Keeping sessions in one pass: a pass costs about the same for one more of them, so apart they pay twice."""

from __future__ import annotations

import threading
import time

SHARE, LONGEST = 0.5, 0.1
"""How long to wait after a pass: a share of what it took, and seconds at most."""
MEMORY = 8
"""Passes that are remembered of who came back in time."""


class Gathering:
    """Holds a pass back for the sessions that the last one answered: they are about to ask again.

    Without it whoever is back first begins a pass of its own, the others wait for its end, and so on for good. The
    wait ends once all are there, and is not tried where most did not come in time of late: a drafter's do not.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._answered = self._missing = 0
        self._deadline = 0.0
        self._returning = 1.0

    def answered(self, messages: int, seconds: float) -> None:
        """A pass that took so long ended, and with it so many messages."""
        with self._changed:
            if self._answered:
                came = 1.0 - self._missing / self._answered
                self._returning += (came - self._returning) / MEMORY
            self._answered = self._missing = messages
            self._deadline = time.perf_counter() + min(SHARE * seconds, LONGEST)

    def arrived(self) -> None:
        """A message came, from whichever session."""
        with self._changed:
            if self._missing and time.perf_counter() <= self._deadline:
                self._missing -= 1
                self._changed.notify()

    def wait(self) -> bool:
        """Until the next pass may begin; whether anybody had to be waited for."""
        waited = False
        with self._changed:
            while self._missing and self._returning >= 0.5:
                left = self._deadline - time.perf_counter()
                if left <= 0.0:
                    return waited
                waited = True
                self._changed.wait(left)
        return waited
