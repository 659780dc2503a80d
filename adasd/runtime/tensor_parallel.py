"""One model in several processes: rank 0 decides and serves, the others repeat what it does to their shares of the KV.

What is refused is refused on rank 0 and nobody else hears of it, so every rank that hears of an operation can do it.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

from adasd.core.messages import ModelInfo
from adasd.kernels.device import DeviceKernels
from adasd.runtime.base import CausalRuntime, Segment, TorchRuntime
from adasd.runtime.group import Group
from adasd.runtime.options import RuntimeOptions
from adasd.runtime.ranks import Ranks
from adasd.runtime.shard import backend, check_shares, load_shard


class Leader:
    """`CausalRuntime[Tensor]` on rank 0: what changes the state of its share is told to the other ranks.

    What needs no other rank is done here first and told when it has succeeded. A pass needs them all: it is checked,
    told, and then begun. Once it is told it can only fail on one rank alone, which ends the group.
    """

    def __init__(self, runtime: TorchRuntime, group: Group) -> None:
        self._runtime, self._group = runtime, group

    def info(self) -> ModelInfo:
        return self._runtime.info()

    @property
    def allocated(self) -> int:
        return self._runtime.allocated

    def reserve(self, session: bytes, length: int) -> None:
        if length <= self._runtime.capacity(session):
            return
        with self._group.together():
            self._runtime.reserve(session, length)
            self._tell("reserve", session.hex(), length)

    def fork(self, source: bytes, session: bytes, length: int) -> None:
        with self._group.together():
            self._runtime.fork(source, session, length)
            self._tell("fork", source.hex(), session.hex(), length)

    def rename(self, session: bytes, name: bytes) -> None:
        with self._group.together():
            self._runtime.rename(session, name)
            self._tell("rename", session.hex(), name.hex())

    def release(self, session: bytes) -> None:
        with self._group.together():
            self._runtime.release(session)
            self._tell("release", session.hex())

    def forward(self, batch: Sequence[Segment]) -> Sequence[Tensor]:
        self._runtime.check(batch)
        for segment in batch:
            self.reserve(segment.session, segment.base + len(segment.ids))
        with self._group.together():
            self._tell("forward", [(one.session.hex(), one.base, list(one.ids), one.rows) for one in batch])
            return self._runtime.forward(batch)

    def end(self) -> None:
        """The others need not wait any longer."""
        with self._group.together():
            self._tell("end")
            self._group.leave()

    def _tell(self, operation: str, *arguments: object) -> None:
        self._group.share(json.dumps([operation, *arguments], separators=(",", ":")).encode())


def repeat(runtime: CausalRuntime[Tensor], message: bytes) -> bool:
    """Do what rank 0 has told; whether there will be more."""
    match json.loads(message):
        case ["forward", segments]:
            runtime.forward([Segment(bytes.fromhex(name), base, ids, rows) for name, base, ids, rows in segments])
        case ["reserve", session, length]:
            runtime.reserve(bytes.fromhex(session), length)
        case ["fork", source, session, length]:
            runtime.fork(bytes.fromhex(source), bytes.fromhex(session), length)
        case ["rename", session, name]:
            runtime.rename(bytes.fromhex(session), bytes.fromhex(name))
        case ["release", session]:
            runtime.release(bytes.fromhex(session))
        case _:
            return False
    return True


class Member:
    """This process's part in serving a model folder; refused before anybody waits for the others if it cannot be."""

    def __init__(self, folder: Path, options: RuntimeOptions, ranks: Ranks) -> None:
        check_shares(folder, options, ranks)
        self._folder, self._options, self._ranks = folder, options, ranks
        self._leader: Leader | None = None

    def lead(self) -> tuple[Leader, DeviceKernels]:
        """Rank 0: a runtime that stands for all, and its kernels, once every rank has loaded its share."""
        group, runtime = self._load()
        self._leader = Leader(runtime, group)
        return self._leader, DeviceKernels(self._options.support)

    def follow(self) -> None:
        """The others: load, and repeat what rank 0 does until its end.

        Signals are rank 0's to obey, since it needs the others until the last stream has drained.
        """
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        group, runtime = self._load()
        with group.together():
            while repeat(runtime, group.receive()):
                group.finish()
            group.leave()

    def end(self) -> None:
        """Rank 0, when nobody is served any more. Fine if it never led."""
        if self._leader is not None:
            self._leader.end()

    def _load(self) -> tuple[Group, TorchRuntime]:
        group = Group(self._ranks, backend(self._options), self._options.heartbeat_seconds)
        with group.together():
            return group, load_shard(self._folder, self._options, group)
