"""How long the store has been away, and who may still wait for it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from adasd.core.errors import ServiceUnavailable

logger = logging.getLogger(__name__)

TRY_SECONDS = 2.0
"""In an outage that is too long for an operation, one in so many seconds tries all the same."""


class StoreAway(ServiceUnavailable):
    """The store has not answered for longer than an operation waits. In words that are meant for clients."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"the session store has not answered for {seconds:.0f} s; try again")


class Outage:
    """What the operations of one store have seen of it: they share their patience, which counts from the first failure.

    on_end: told how long an outage took, in seconds.
    """

    def __init__(self, on_end: Callable[[float], None]) -> None:
        self._on_end = on_end
        self._since: float | None = None
        self._try_at = self._answered_at = 0.0

    @property
    def seconds(self) -> float:
        """Since the first attempt that failed and had no success after it; 0 while the store answers."""
        return 0.0 if self._since is None else time.monotonic() - self._since

    def require(self, patience: float) -> None:
        """Raises StoreAway where an operation of this patience has no chance, unless it is its turn to find out."""
        if self._since is not None and self.seconds >= patience and time.monotonic() < self._try_at:
            raise StoreAway(self.seconds)
        self.trying()

    def trying(self) -> None:
        """Somebody asks: nobody else need find out."""
        self._try_at = time.monotonic() + TRY_SECONDS

    def failed(self, since: float, error: Exception) -> None:
        """An attempt that began then (`time.monotonic`) got no answer. An answer since then knows better."""
        if since <= self._answered_at:
            return
        if self._since is None:
            self._since = since
            logger.warning("the session store does not answer: %s", str(error) or type(error).__name__)
        self.trying()

    def answered(self) -> None:
        self._answered_at = time.monotonic()
        if self._since is not None:
            seconds, self._since = self.seconds, None
            logger.warning("the session store answers again, after %.1f s", seconds)
            self._on_end(seconds)
