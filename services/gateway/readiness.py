"""Whether the gateway can serve, and what keeps it from it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping

from adasd.core.errors import AdasdError, Overloaded
from services.gateway.errors import Unavailable

logger = logging.getLogger(__name__)

Probe = Callable[[], Awaitable[None]]
"""Raises an AdasdError that says what is wrong."""

NOT_YET = "has not answered yet"
FAILING = "is not available; the gateway's log says why"
"""All that the outside is told: a probe's own words name addresses."""
ABANDON_SECONDS = 3.0
"""For requests that are being ended to close what they hold."""


class Readiness:
    """Every part must have answered once before requests are taken. After that a part in `spared` may be missing:
    decoding goes on without a drafter.
    """

    def __init__(self, probes: Mapping[str, Probe], spared: Collection[str] = ("drafter",)) -> None:
        self._probes = dict(probes)
        self._spared = frozenset(spared)
        self._unseen = set(probes)
        self._problems = dict.fromkeys(probes, NOT_YET)
        self._reasons: dict[str, str] = {}  # as last logged
        self.draining = False

    @property
    def problems(self) -> dict[str, str]:
        """By part, that its last probe failed, in words for anybody."""
        stopping = {"gateway": "is stopping"} if self.draining else {}
        return {**stopping, **self._problems}

    @property
    def started(self) -> bool:
        """Every part has answered once."""
        return not self._unseen

    @property
    def ready(self) -> bool:
        return self.started and not self.draining and self._problems.keys() <= self._spared

    def require(self) -> None:
        """Raises Unavailable where a new request has no chance; what fails later, requests find out."""
        if self.draining or not self.started:
            raise self.unavailable()

    def unavailable(self) -> Unavailable:
        reasons = "; ".join(f"{part}: {problem}" for part, problem in self.problems.items())
        return Unavailable(f"not ready: {reasons}")

    async def watch(self, seconds: float) -> None:
        """Probe all parts again and again, so many seconds apart. Runs until cancelled."""
        while True:
            await self.probe()
            await asyncio.sleep(seconds)

    async def probe(self) -> None:
        """Probe all parts once."""
        await asyncio.gather(*(self._check(part, probe) for part, probe in self._probes.items()))

    async def _check(self, part: str, probe: Probe) -> None:
        try:
            await probe()
        except AdasdError as error:
            self._problems[part] = FAILING
            self._log(part, str(error))
        else:
            self._problems.pop(part, None)
            self._unseen.discard(part)
            self._log(part, None)

    def _log(self, part: str, reason: str | None) -> None:
        """What a probe complained of, once."""
        if reason is None and self._reasons.pop(part, ""):
            logger.info("%s is available again", part)
        elif reason is not None and self._reasons.get(part) != reason:
            self._reasons[part] = reason
            logger.warning("%s is not available: %s", part, reason)


class Capacity:
    """Requests in hand, at most `limit`, and a way to end them all.

    handing_over: set when running work should let go of its sessions, between two rounds.
    abandoned: set when the time for that is over too; what still runs then ends with an error.
    """

    def __init__(self, limit: int) -> None:
        self.handing_over = asyncio.Event()
        self.abandoned = asyncio.Event()
        self.in_hand = 0
        self._limit = limit
        self._idle = asyncio.Event()
        self._idle.set()

    def take(self, places: int = 1) -> None:
        """Take on one more request, or further choices of one. Raises Overloaded if the gateway is full."""
        if places and self.in_hand + places > self._limit:
            raise Overloaded(f"{self.in_hand} requests are in hand; {self._limit} are the limit of this gateway")
        self.in_hand += places
        if self.in_hand:
            self._idle.clear()

    def give_back(self, places: int = 1) -> None:
        """So many requests or choices less in hand."""
        self.in_hand -= places
        if self.in_hand == 0:
            self._idle.set()

    async def drain(self, grace: float) -> None:
        """Wait until no request is in hand; after `grace` seconds let go of those that are, for others to go on with.

        Returns 2 ABANDON_SECONDS later at the latest: a round may take long, and a client that does not read cannot
        be told its end.
        """
        if await self._idle_within(grace):
            return
        self.handing_over.set()
        if not await self._idle_within(ABANDON_SECONDS):
            self.abandoned.set()
            await self._idle_within(ABANDON_SECONDS)

    async def _idle_within(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True
