"""A channel whose streams delay, repeat, reorder and lose whole messages, and break: by the toss of a seeded coin."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from random import Random
from typing import Any

from adasd.core.errors import AdasdError, ServiceUnavailable


@dataclass
class Faults:
    """Chances of each fault, per message. happened: how often each did."""

    random: Random
    delay: float = 0.0
    repeat: float = 0.0
    reorder: float = 0.0
    cut: float = 0.0
    happened: dict[str, int] = field(default_factory=dict)

    def strikes(self, name: str) -> bool:
        struck = self.random.random() < getattr(self, name)
        self.happened[name] = self.happened.get(name, 0) + struck
        return struck


class FaultyStream:
    """A `Duplex` seen through faults. A repeated question has two answers; an answer may overtake the one before."""

    def __init__(self, inner: Any, faults: Faults) -> None:
        self._inner = inner
        self._faults = faults
        self._overtaken: list[Any] = []
        self._broken: AdasdError | None = None

    @property
    def pending(self) -> int:
        return int(self._inner.pending) + len(self._overtaken)

    def send(self, request: Any) -> None:
        self._inner.send(request)
        if self._faults.strikes("repeat"):
            self._inner.send(request)
        if self._faults.strikes("cut"):
            self._broken = ServiceUnavailable("the stream was cut")
            self._inner.cancel()

    async def receive(self) -> Any:
        if self._broken is not None:
            raise self._broken
        if self._faults.strikes("delay"):
            await asyncio.sleep(0.003)
        if self._overtaken and not self._inner.pending:
            return self._overtaken.pop()
        reply = await self._inner.receive()
        if self._inner.pending and self._faults.strikes("reorder"):
            later = await self._inner.receive()
            self._overtaken.append(reply)
            return later
        return reply

    def settle(self) -> bool:
        return bool(self._inner.settle()) and not self._overtaken

    def cancel(self) -> None:
        self._inner.cancel()

    async def close(self) -> None:
        await self._inner.close()


def spoil(replicas: Any, faults: Faults) -> None:
    """Every stream that these replicas open from now on is a faulty one."""
    for replica in replicas.replicas:
        open_stream = replica.connection.open
        replica.connection.open = lambda *given, open_stream=open_stream: FaultyStream(open_stream(*given), faults)
