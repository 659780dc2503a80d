"""KV of one session: buffers with room to spare, so that reading on and rolling back move an end and copy nothing."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

PAGE = 64
"""Capacities are multiples of this many positions."""


class SessionKV:
    """Keys and values of every layer, [key heads, capacity, width] each. length: positions that count.

    A pass writes behind `length` and moves it only when all layers have been written: a pass that fails leaves no
    trace. Buffers grow by half when they are full; that is the only copy.
    """

    __slots__ = ("_addresses", "_keys", "_values", "capacity", "length")

    def __init__(self, layers: int) -> None:
        self._keys: list[Tensor | None] = [None] * layers
        self._values: list[Tensor | None] = [None] * layers
        self._addresses: NDArray[np.int64] | None = None
        self.capacity = 0
        self.length = 0

    def reserve(self, length: int, limit: int) -> None:
        """Room for `length` positions; a little more to grow into, up to `limit`."""
        if length > self.capacity:
            self.capacity, self._addresses = grown(self.capacity, length, limit), None
            for buffers in (self._keys, self._values):
                buffers[:] = [None if buffer is None else self._moved(buffer) for buffer in buffers]

    def _moved(self, buffer: Tensor) -> Tensor:
        wider = buffer.new_empty((buffer.shape[0], self.capacity, buffer.shape[2]))
        wider[:, : self.length] = buffer[:, : self.length]
        return wider

    def write(self, layer: int, keys: Tensor, values: Tensor) -> None:
        """Put n positions behind `length`. keys, values: [key heads, n, width]."""
        for buffers, states in ((self._keys, keys), (self._values, values)):
            buffer = buffers[layer]
            if buffer is None:
                buffer = buffers[layer] = states.new_empty((states.shape[0], self.capacity, states.shape[2]))
            buffer[:, self.length : self.length + states.shape[1]] = states

    def addresses(self, shape: tuple[int, int]) -> NDArray[np.int64]:
        """Where each layer's keys and values lie in the host's memory, until the next `reserve`: [layers, 2].

        shape: (key heads, width), float32; layers that nothing was written to get their buffers.
        """
        if self._addresses is None:
            for buffers in (self._keys, self._values):
                buffers[:] = [self._buffer(buffer, shape) for buffer in buffers]
            pairs = zip(self._keys, self._values, strict=True)
            self._addresses = np.array([[kv.data_ptr() for kv in pair if kv is not None] for pair in pairs])
        return self._addresses

    def _buffer(self, buffer: Tensor | None, shape: tuple[int, int]) -> Tensor:
        return torch.empty((shape[0], self.capacity, shape[1])) if buffer is None else buffer

    def read(self, layer: int, end: int) -> tuple[Tensor, Tensor]:
        """Views of the first `end` positions, [key heads, end, width] each."""
        keys, values = self._keys[layer], self._values[layer]
        assert keys is not None
        assert values is not None
        return keys[:, :end], values[:, :end]


def grown(capacity: int, length: int, limit: int) -> int:
    """Capacity to allocate when `length` positions no longer fit: half as much again, whole pages, at most `limit`."""
    wanted = max(length, capacity + capacity // 2)
    return min(limit, -(-wanted // PAGE) * PAGE)


def bytes_per_position(layers: int, key_heads: int, width: int, dtype: torch.dtype) -> int:
    """Memory of one position of one session."""
    return 2 * layers * key_heads * width * dtype.itemsize
