"""KV of many sessions in one block of memory a layer, a slot each: addresses and shapes that never change.

A pass over slots 0 to n - 1 reads views of the block. Nothing is copied by it, nor by a rollback.
"""

from __future__ import annotations

from collections.abc import Collection

from torch import Tensor

from adasd.core.errors import Overloaded, SessionNotFound


class SlotPool:
    """keys, values of a layer: [slots, key heads, positions, width], made by the first pass that writes there.

    What lies in a slot behind its session's length is anything, but never counts: passes over neighbouring slots may
    write there. It begins as zeros, since a weight of zero times NaN is NaN.
    """

    def __init__(self, layers: int, slots: int, positions: int) -> None:
        self.slots, self.positions = slots, positions
        self._buffers: list[tuple[Tensor, Tensor] | None] = [None] * layers
        self._slot_of: dict[bytes, int] = {}
        self.lengths = [0] * slots

    def __contains__(self, session: bytes) -> bool:
        return session in self._slot_of

    def __len__(self) -> int:
        """Slots in use."""
        return len(self._slot_of)

    def buffers(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """The block of a layer. keys, values: [.., heads, .., width] as it is to hold them."""
        known = self._buffers[layer]
        if known is None:
            known = self._buffers[layer] = (self._zeros(keys), self._zeros(values))
        return known

    def _zeros(self, like: Tensor) -> Tensor:
        return like.new_zeros((self.slots, like.shape[1], self.positions, like.shape[3]))

    def slot(self, session: bytes) -> int:
        """The session's slot, the lowest free one for a new session. Raises Overloaded."""
        if session not in self._slot_of:
            self._slot_of[session] = self._free()
        return self._slot_of[session]

    def _free(self) -> int:
        taken = set(self._slot_of.values())
        for slot in range(self.slots):
            if slot not in taken:
                self.lengths[slot] = 0
                return slot
        raise Overloaded(f"all {self.slots} slots of KV are taken")

    def held(self) -> dict[bytes, int]:
        """Positions that count, by session."""
        return {session: self.lengths[slot] for session, slot in self._slot_of.items()}

    def release(self, session: bytes) -> None:
        self._slot_of.pop(session, None)

    def rename(self, session: bytes, name: bytes) -> None:
        if session not in self._slot_of:
            raise SessionNotFound("the KV holds nothing of this session")
        self._slot_of[name] = self._slot_of.pop(session)

    def fork(self, source: bytes, session: bytes, length: int) -> None:
        """Let a session hold the first `length` positions of another. Raises SessionNotFound, Overloaded."""
        if self.held().get(source, -1) < length:
            raise SessionNotFound(f"the KV holds no {length} positions to start from")
        self._copy(self._slot_of[source], self.slot(session), length)

    def _copy(self, source: int, slot: int, length: int) -> None:
        for block in self._blocks():
            block[slot, :, :length] = block[source, :, :length]
        self.lengths[slot] = length

    def gather(self, wanted: Collection[bytes], below: int) -> None:
        """Move sessions so that those wanted, `below` or fewer, have slots below that; others give way."""
        others = [slot for slot in range(below) if slot not in {self._slot_of[session] for session in wanted}]
        for session in wanted:
            if self._slot_of[session] >= below:
                self._swap(session, others.pop(0))

    def _swap(self, session: bytes, slot: int) -> None:
        """Have a session in another slot, and whoever has that one in its own."""
        own = self._slot_of[session]
        length = max(self.lengths[own], self.lengths[slot])
        for block in self._blocks():
            moved = block[slot, :, :length].clone()
            block[slot, :, :length] = block[own, :, :length]
            block[own, :, :length] = moved
        for other, held in self._slot_of.items():
            if held == slot:
                self._slot_of[other] = own
        self._slot_of[session] = slot
        self.lengths[own], self.lengths[slot] = self.lengths[slot], self.lengths[own]

    def _blocks(self) -> list[Tensor]:
        return [block for pair in self._buffers if pair is not None for block in pair]


def bucket(number: int) -> int:
    """The next power of two."""
    return 1 << max(0, number - 1).bit_length()


def room(lengths: int, context_length: int, slack: int) -> tuple[int, int]:
    """How many slots a number of positions makes, and positions of each: `slack` more than a session may fill, for what
    passes write behind its end."""
    positions = context_length + slack
    return lengths // positions, positions
