"""The processes that hold one model together: what rank 0 tells the others, and the end of all when one is lost."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import NoReturn

import torch
import torch.distributed as dist

from adasd.core.errors import AdasdError
from adasd.runtime.heartbeat import STEPS, Heartbeat
from adasd.runtime.ranks import Ranks
from adasd.runtime.rendezvous import meet

logger = logging.getLogger(__name__)

MEETING_TIMEOUT = timedelta(minutes=10)
"""How long ranks may start one after the other."""
COLLECTIVE_TIMEOUT = timedelta(minutes=1)
"""Of the model's own collectives, which the ranks begin together once all have loaded: of one product, on all ranks."""
QUIET = timedelta(days=3650)
"""How long nobody may ask anything. The heartbeat, not this, tells of a rank that is gone."""
FRAME_BYTES = 2048
"""Of the first broadcast of a message; nearly all messages need no second."""
LENGTH_BYTES = 8


class Group:
    """This process's place in the group. Joining waits for all. Owned by one thread, but for the heartbeat's.

    backend: of the model's collectives, as torch.distributed names it. seconds: a rank silent for so long is lost.
    """

    def __init__(self, ranks: Ranks, backend: str, seconds: float) -> None:
        self.ranks = ranks
        store = meet(ranks, MEETING_TIMEOUT)
        dist.init_process_group(
            backend, store=store, rank=ranks.rank, world_size=ranks.size, timeout=COLLECTIVE_TIMEOUT
        )
        self._control = dist.new_group(backend="gloo", timeout=QUIET)
        self._begun = 0
        self._heartbeat = Heartbeat(store.clone(), ranks.rank, ranks.size, seconds, lambda: self._begun, self.end)
        self._heartbeat.stamp()
        self.smallest(0)  # all have stamped
        self._heartbeat.start()

    def loaded(self) -> None:
        """This rank has loaded its weights. Waits for all; silence is noticed soon from now on."""
        self.finish()
        self.smallest(0)
        self._heartbeat.loaded()

    def begin(self) -> None:
        """This rank begins another step, of those that all ranks take alike, of the operation under way."""
        self._begun += 1

    def finish(self) -> None:
        """This rank has done its part of the operation, whatever steps that took."""
        self._begun |= STEPS - 1

    def share(self, message: bytes) -> None:
        """Rank 0: tell the others."""
        self._begin_operation()
        frame, rest = framed(message)
        self._broadcast(frame)
        if rest:
            self._broadcast(rest)

    def receive(self) -> bytes:
        """The others: wait for what rank 0 tells."""
        frame = self._broadcast(bytes(FRAME_BYTES))
        self._begin_operation()
        lacking = missing(frame)
        return unframed(frame, self._broadcast(bytes(lacking)) if lacking else b"")

    def smallest(self, number: int) -> int:
        """The least of all ranks' numbers."""
        numbers = torch.tensor(number)
        dist.all_reduce(numbers, dist.ReduceOp.MIN, self._control)
        return int(numbers)

    def leave(self) -> None:
        """The others may go."""
        self._heartbeat.stop()
        dist.destroy_process_group()

    @contextmanager
    def together(self) -> Iterator[None]:
        """An operation. What fails here has failed on this rank alone, and the ranks no longer agree: end the process.

        Our own errors pass: they are raised before anything is done.
        """
        try:
            yield
            self.finish()
        except AdasdError:
            raise
        except Exception as error:
            logger.exception("the group is broken")
            self.end(repr(error))

    def end(self, reason: str) -> NoReturn:
        """End the process now, whatever its threads wait for; torchrun ends the others and starts the group again."""
        logger.critical("rank %d of %d ends: %s", self.ranks.rank, self.ranks.size, reason)
        os._exit(1)

    def _begin_operation(self) -> None:
        self.finish()
        self.begin()

    def _broadcast(self, content: bytes) -> bytes:
        data = torch.frombuffer(bytearray(content), dtype=torch.uint8)
        dist.broadcast(data, src=0, group=self._control)
        return data.numpy().tobytes()


def framed(message: bytes) -> tuple[bytes, bytes]:
    """A message as a frame of FRAME_BYTES, which says how long it is, and what does not fit into it."""
    whole = len(message).to_bytes(LENGTH_BYTES, "big") + message
    return whole[:FRAME_BYTES].ljust(FRAME_BYTES, b"\0"), whole[FRAME_BYTES:]


def missing(frame: bytes) -> int:
    """Bytes of the message that the frame does not hold."""
    return max(0, LENGTH_BYTES + _length(frame) - FRAME_BYTES)


def unframed(frame: bytes, rest: bytes) -> bytes:
    """The message."""
    return (frame + rest)[LENGTH_BYTES : LENGTH_BYTES + _length(frame)]


def _length(frame: bytes) -> int:
    return int.from_bytes(frame[:LENGTH_BYTES], "big")
