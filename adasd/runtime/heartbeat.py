"""Who of a group is alive, told beside the collectives: those wait for minutes, and a long prefill looks the same."""

from __future__ import annotations

import faulthandler
import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

LOOKS = 10
"""In a row that a rank may miss."""
LOADING_LOOKS = 15 * LOOKS
"""The same while weights are loaded: reading a large file may keep every thread of Python waiting."""
STEPS = 1 << 20
"""More than any operation takes."""


class Stamp(NamedTuple):
    """What a rank says of itself at every look. beat: grows by one each time.

    begun: how far it has come: STEPS times the operations it has begun, and the steps of the last one.
    """

    beat: int
    begun: int

    def pack(self) -> str:
        return f"{self.beat} {self.begun}"

    @classmethod
    def unpack(cls, packed: bytes) -> Stamp:
        return cls(*map(int, packed.split()))


class Watch:
    """Judges the ranks of a group by what consecutive looks find.

    Looks are counted, not seconds: machines' clocks need not agree, and a machine that slept accuses nobody.
    """

    def __init__(self, size: int, allowed: int = LOOKS) -> None:
        self._last = [Stamp(-1, -1)] * size
        self.allow(allowed)

    def allow(self, looks: int) -> None:
        """A rank may miss so many in a row from now on; what was missed before is forgiven."""
        self._allowed, self._misses = looks, [0] * len(self._last)

    def look(self, stamps: Sequence[Stamp]) -> str | None:
        """Whom the group has lost, if anybody. stamps: of all ranks, in order.

        A rank that does not stamp is dead. One that stamps, stays where it is and has not begun what another has, is
        stuck: whoever waits for the next operation begins it at once, and within a pass no rank is ahead of another by
        more than the step at which it waits for it. So it is no matter how long a pass takes.
        """
        newest = max(stamp.begun for stamp in stamps)
        for rank, (stamp, last) in enumerate(zip(stamps, self._last, strict=True)):
            beats = stamp.beat != last.beat
            moves = stamp.begun == newest or stamp.begun != last.begun
            self._misses[rank] = 0 if beats and moves else self._misses[rank] + 1
        self._last = list(stamps)
        if (worst := max(self._misses)) < self._allowed:
            return None
        rank = self._misses.index(worst)
        return f"rank {rank} is silent, or stuck in {_place(stamps[rank].begun)}; another came to {_place(newest)}"


def _place(begun: int) -> str:
    operation, step = divmod(begun, STEPS)
    return f"operation {operation}" + ("" if step == STEPS - 1 else f", step {step}")


class Store(Protocol):
    """The part of torch.distributed's stores that is used here."""

    def set(self, key: str, value: str, /) -> None: ...
    def multi_get(self, keys: list[str], /) -> list[bytes]: ...


class Heartbeat:
    """Stamps for this rank and watches all of them, on a thread of its own; patiently until the weights are loaded.

    store: a client of its own, for a thread that waits in one keeps all others out of it. seconds: a rank that has not
    stamped for so long is lost. begun: how far this rank has come. lost: told the reason, once, on that thread.
    """

    def __init__(
        self,
        store: Store,
        rank: int,
        size: int,
        seconds: float,
        begun: Callable[[], int],
        lost: Callable[[str], object],
    ) -> None:
        self._store, self._rank, self._seconds, self._begun, self._lost = store, rank, seconds, begun, lost
        self._keys = [f"rank {number}" for number in range(size)]
        self._watch, self._patience = Watch(size, LOADING_LOOKS), seconds * LOADING_LOOKS / LOOKS
        self._beat = 0
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def stamp(self) -> None:
        """Say that this rank lives. All must have done so once before any starts."""
        self._beat += 1
        self._store.set(self._keys[self._rank], Stamp(self._beat, self._begun()).pack())

    def start(self) -> None:
        self._thread.start()

    def loaded(self) -> None:
        """All ranks have loaded their weights: from now on no rank may be silent for longer than `seconds`."""
        self._watch.allow(LOOKS)
        self._patience = self._seconds

    def stop(self) -> None:
        """Neither stamp nor watch any more."""
        self._stopped.set()
        self._thread.join()
        faulthandler.cancel_dump_traceback_later()

    def _run(self) -> None:
        while not self._stopped.wait(self._seconds / LOOKS):
            # A store may hang too, and a call into C may keep every thread of Python waiting; this ends the process.
            faulthandler.dump_traceback_later(self._patience, exit=True)
            try:
                self.stamp()
                reason = self._watch.look([Stamp.unpack(packed) for packed in self._store.multi_get(self._keys)])
            except Exception as error:
                reason = f"the store of the group does not answer: {error}"
            if reason is not None:
                self._lost(reason)
                return
