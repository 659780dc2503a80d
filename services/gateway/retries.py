"""How often a round is asked again, and what all rounds together may ask again."""

from __future__ import annotations

import asyncio
import time

from adasd.core.errors import AdasdError, DeadlineExceeded, Overloaded, ServiceUnavailable, SessionNotFound

RETRY_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 1.0
PASSING = (ServiceUnavailable, DeadlineExceeded, Overloaded, SessionNotFound)
"""What may pass while a request waits."""


class RetryBudget:
    """Bounds retries by a share of what succeeds (and one a second), so that trouble is not multiplied by them."""

    def __init__(self, ratio: float, reserve: float) -> None:
        self._ratio = ratio
        self._reserve = self._tokens = float(reserve)
        self._at = time.monotonic()

    def earn(self) -> None:
        """A question was answered."""
        self._tokens = min(self._reserve, self._tokens + self._ratio)

    def spend(self) -> bool:
        """Whether one more retry is within the budget; it is spent then."""
        now = time.monotonic()
        self._tokens, self._at = min(self._reserve, self._tokens + now - self._at), now
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True


class Retries:
    """What is left of one round's patience. seconds: from its first failure on."""

    def __init__(self, seconds: float, budget: RetryBudget) -> None:
        self._seconds = seconds
        self._budget = budget
        self._give_up: float | None = None
        self._resent = False
        self._pause = RETRY_PAUSE_SECONDS

    def resend(self, error: SessionNotFound) -> None:
        """Once. Raises `error` after that."""
        if self._resent:
            raise error
        self._resent = True

    async def pause(self, error: AdasdError, can_move: bool) -> None:
        """Wait before the next attempt; not at all before the first one elsewhere. Raises `error` when time is up, and
        Overloaded where there is no other replica: the client is to back off.
        """
        first, self._give_up = self._give_up is None, self._give_up or time.monotonic() + self._seconds
        if first and can_move:
            return
        if isinstance(error, Overloaded):
            raise error
        while True:
            if time.monotonic() >= self._give_up:
                raise error
            await asyncio.sleep(self._pause)
            self._pause = min(2 * self._pause, LONGEST_PAUSE_SECONDS)
            if self._budget.spend():
                return
