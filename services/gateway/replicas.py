"""The replicas of one service: found by address or DNS name, new streams spread over the healthy ones."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Generic, TypeVar

from adasd.core.errors import AdasdError, DeadlineExceeded, ServiceUnavailable
from adasd.rpc.connection import Connection

logger = logging.getLogger(__name__)

C = TypeVar("C", bound=Connection)

DNS = "dns:///"
FAULTS = (ServiceUnavailable, DeadlineExceeded)
"""What tells against a replica; other errors tell against the request."""


@dataclass(frozen=True, slots=True)
class HealthOptions:
    """breaker_failures: in a row, until a replica is left alone for breaker_seconds; then one stream tries it.

    retry_ratio: retries beyond a round's first, as a share of answered rounds. retry_reserve: so many may come at once.
    resolve_seconds: between two looks at a DNS name.
    """

    breaker_failures: int = 3
    breaker_seconds: float = 1.0
    retry_ratio: float = 0.2
    retry_reserve: int = 100
    resolve_seconds: float = 5.0


class Breaker:
    """Whether a replica may be asked, by how it has done so far."""

    def __init__(self, failures: int, seconds: float) -> None:
        self._limit = failures
        self._seconds = seconds
        self._failures = 0
        self._again_at = 0.0

    def allows(self) -> bool:
        return self._failures < self._limit or time.monotonic() >= self._again_at

    def trying(self) -> None:
        """Somebody asks: others wait for how that goes if the replica was left alone until now."""
        if self._failures >= self._limit:
            self._again_at = time.monotonic() + self._seconds

    def succeeded(self) -> None:
        self._failures = 0

    def failed(self) -> None:
        self._failures += 1
        self._again_at = time.monotonic() + self._seconds


@dataclass(eq=False)
class Replica(Generic[C]):
    """One process of a service. streams: those of this gateway. turn: number of the last one.

    away: it does not answer Info. weights: fingerprint of its model, as last heard; None before that. drafts: likewise
    of the drafter beside it, if there is one.
    retired: its name no longer leads here; its streams may end, new ones go elsewhere.
    """

    connection: C
    breaker: Breaker
    streams: int = 0
    turn: int = -1
    away: bool = False
    weights: str | None = None
    drafts: str = ""
    retired: bool = False
    closing: asyncio.Task[None] | None = None

    @property
    def address(self) -> str:
        return self.connection.address

    def leave(self, error: AdasdError | None = None) -> None:
        """One stream less; `error` is what it ended with."""
        self.streams -= 1
        if isinstance(error, FAULTS):
            self.breaker.failed()
        self.close_if_unused()

    def close_if_unused(self) -> None:
        if self.retired and self.streams == 0 and self.closing is None:
            self.closing = asyncio.create_task(self.connection.close())


@dataclass
class ReplicaSet(Generic[C]):
    """addresses: `host:port`, or `dns:///name:port` for every address behind a name (a headless service's pods).

    on_change: called when replicas came or went.
    """

    addresses: Sequence[str]
    connect: Callable[[str], C]
    options: HealthOptions
    on_change: Callable[[], None] = lambda: None
    replicas: list[Replica[C]] = field(default_factory=list)
    _watching: list[asyncio.Task[None]] = field(default_factory=list)
    _retired: list[Replica[C]] = field(default_factory=list)
    _turns: Iterator[int] = field(default_factory=count)

    def __post_init__(self) -> None:
        self._resolved: dict[str, list[str]] = {
            address: [] if address.startswith(DNS) else [address] for address in self.addresses
        }
        self._update()

    def start(self) -> None:
        """Begin to resolve names; needs a running loop."""
        names = [address for address in self.addresses if address.startswith(DNS)]
        self._watching = [asyncio.create_task(self._watch(name)) for name in names]

    async def close(self) -> None:
        for task in self._watching:
            task.cancel()
        await asyncio.gather(*self._watching, return_exceptions=True)
        for replica in (*self.replicas, *self._retired):
            await replica.connection.close()

    def known(self) -> int:
        """How many replicas there are."""
        return len(self.replicas)

    def healthy(self) -> int:
        """How many of them answer and are not left alone for their faults."""
        return len(self._healthy(None))

    def enter(self, left: Replica[C] | None, weights: str | None) -> Replica[C]:
        """Where a new stream goes: the least busy of those that answer and have these weights, rather not the one it
        has just left. Raises ServiceUnavailable if there is none.
        """
        healthy = self._healthy(weights)
        if not healthy:
            raise ServiceUnavailable("no replica answers" if self.replicas else "no replica is known")
        chosen = min(healthy, key=lambda replica: (replica is left, replica.streams, replica.turn))
        chosen.turn = next(self._turns)  # among equals whoever was asked last comes last
        chosen.breaker.trying()
        chosen.streams += 1
        return chosen

    def elsewhere(self, left: Replica[C] | None, weights: str | None) -> bool:
        """Whether a stream that leaves this replica has a healthy one to go to; None: whichever it will be at first."""
        others = sum(replica is not left for replica in self._healthy(weights))
        return others > (left is None)

    def _healthy(self, weights: str | None) -> list[Replica[C]]:
        return [replica for replica in self.replicas if self._takes(replica, weights)]

    def _takes(self, replica: Replica[C], weights: str | None) -> bool:
        """A text does not go on with another model, not even while one replica after the other is updated."""
        known = weights is None or replica.weights is None or replica.weights == weights
        return known and not replica.away and replica.breaker.allows()

    async def _watch(self, name: str) -> None:
        while True:
            try:
                self._resolved[name] = await resolve(name)
            except OSError as error:  # what was known may still be there
                logger.warning("%s does not resolve: %s", name, error)
            else:
                self._update()
            await asyncio.sleep(self.options.resolve_seconds)

    def _update(self) -> None:
        wanted = dict.fromkeys(address for addresses in self._resolved.values() for address in addresses)
        known = {replica.address for replica in self.replicas}
        gone = [replica for replica in self.replicas if replica.address not in wanted]
        new = [address for address in wanted if address not in known]
        for replica in gone:
            self.replicas.remove(replica)
            replica.retired = True
            replica.close_if_unused()
        self._retired = [*(r for r in self._retired if r.closing is None or not r.closing.done()), *gone]
        self.replicas += [self._replica(address) for address in new]
        if gone or new:
            self.on_change()

    def _replica(self, address: str) -> Replica[C]:
        options = self.options
        return Replica(self.connect(address), Breaker(options.breaker_failures, options.breaker_seconds))


async def resolve(name: str) -> list[str]:
    """Every address behind `dns:///host:port`. Raises OSError if there is none."""
    host, _, port = name.removeprefix(DNS).rpartition(":")
    found = await asyncio.get_running_loop().getaddrinfo(host, int(port), type=socket.SOCK_STREAM)
    return [f"[{ip[0]}]:{port}" if family == socket.AF_INET6 else f"{ip[0]}:{port}" for family, *_, ip in found]
