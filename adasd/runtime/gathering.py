"""Keeping sessions in one pass: a pass costs about the same for one more of them, so apart they pay twice."""

from __future__ import annotations

import threading
import time

LONGEST = 0.1
"""Seconds that a pass waits at most."""
MEMORY = 8
"""Waits that are remembered, by who came in time."""


class Gathering:
    """Holds a pass back for the sessions that are about to ask: those the last pass answered, and as many as last came
    together with the first one to ask.

    Without it whoever is back first begins a pass of its own, the others wait for its end, and so on for good. The
    first kind keeps a verifier's sessions together; a drafter's come back only after a verdict, together.

    Everybody present waits as long as the wait lasts, and who is missing would lose a pass: so it lasts as many passes
    as there are missing for each that is present, and one pass at most.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._answered, self._together = _Expected(), _Expected()
        self._seconds = 0.0
        self._present = self._company = 0

    def answered(self) -> None:
        """A message is about to be answered; its session may be back before the pass has ended for the others."""
        with self._changed:
            self._answered.expect(1)

    def ended(self, seconds: float) -> None:
        """A pass has ended that took so long."""
        self._seconds = seconds

    def arrived(self, first: bool = False) -> None:
        """A message came, from whichever session. first: there was nothing to do before it."""
        with self._changed:
            self._answered.one_came()
            self._together.one_came()
            if first:
                self._together.expect(max(0, self._company - 1))
                self._company = 0
            self._company += 1
            self._present += 1
            self._changed.notify()

    def wait(self, running: int = 0) -> bool:
        """Until the next pass may begin, in which so many take part already; whether anybody had to be waited for."""
        began, waited = time.perf_counter(), False
        with self._changed:
            while (left := began + self._patience(running) - time.perf_counter()) > 0.0:
                waited = True
                self._changed.wait(left)
            self._answered.close()
            self._together.close()
            self._present = 0
        return waited

    def _patience(self, running: int) -> float:
        missing = max(self._answered.likely, self._together.likely)
        return min(self._seconds * min(1.0, missing / max(1, running + self._present)), LONGEST)


class _Expected:
    """Messages that should come before the next pass."""

    def __init__(self) -> None:
        self._count = self._missing = 0
        self._in_time = 1.0

    @property
    def likely(self) -> int:
        """How many are missing; nobody where most did not come in time of late."""
        return self._missing if self._in_time >= 0.5 else 0

    def expect(self, count: int) -> None:
        self._count += count
        self._missing += count

    def one_came(self) -> None:
        self._missing = max(0, self._missing - 1)

    def close(self) -> None:
        """Nobody is waited for any longer; remember who came."""
        if self._count:
            came = 1.0 - self._missing / self._count
            self._in_time += (came - self._in_time) / MEMORY
        self._count = self._missing = 0
