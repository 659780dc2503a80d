"""A preallocated KV cache of many rows that advance one position a step, each at its own length."""

from __future__ import annotations

from typing import Any

import torch
from transformers import Cache, DynamicCache
from transformers.cache_utils import CacheLayerMixin, DynamicLayer

WIDTH_STEP = 32
"""Attention reads a multiple of this many positions, so that few distinct shapes occur."""


class SlotLayer(CacheLayerMixin):  # type: ignore[no-untyped-call]
    """keys, values: [slots, heads, length, width]; `update` writes one position of each slot, where `clock` says."""

    def __init__(self, clock: SlotClock) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._clock = clock

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        slots, length = self._clock.slots, self._clock.length
        self.keys = key_states.new_zeros((slots, key_states.shape[1], length, key_states.shape[3]))
        self.values = value_states.new_zeros((slots, value_states.shape[1], length, value_states.shape[3]))
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        keys, values = self._buffers(key_states, value_states)
        rows, positions, width = self._clock.rows, self._clock.positions, self._clock.width
        keys[rows, :, positions] = key_states[:, :, 0]
        values[rows, :, positions] = value_states[:, :, 0]
        return keys[:, :, :width], values[:, :, :width]

    def begin(self, slot: int, key_states: torch.Tensor, value_states: torch.Tensor, length: int) -> None:
        """Let `slot` begin with the first `length` positions of these states, [1, heads, positions, width]."""
        keys, values = self._buffers(key_states, value_states)
        keys[slot, :, :length] = key_states[0, :, :length]
        values[slot, :, :length] = value_states[0, :, :length]

    def _buffers(self, key_states: torch.Tensor, value_states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        assert self.keys is not None
        assert self.values is not None
        return self.keys, self.values

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self._clock.width, 0

    def get_seq_length(self) -> int:
        return self._clock.width

    def get_max_length(self) -> int:
        return self._clock.length


class SlotClock:
    """Where every slot stands. positions: int64 [slots], the position that the next token of each slot takes."""

    def __init__(self, slots: int, length: int, device: torch.device) -> None:
        self.slots, self.length, self.width = slots, length, WIDTH_STEP
        self.rows = torch.arange(slots, device=device)
        self.positions = torch.zeros(slots, dtype=torch.int64, device=device)
        self._span = torch.arange(length, device=device)

    def mask(self) -> torch.Tensor:
        """0 where a slot attends to a cached position this step, else -inf, [slots, 1, 1, width]; sets `width`."""
        needed = int(self.positions.max()) + 1
        self.width = min(self.length, -(-needed // WIDTH_STEP) * WIDTH_STEP)
        beyond = self._span[: self.width] > self.positions[:, None]
        return torch.zeros(beyond.shape, device=beyond.device).masked_fill_(beyond, -torch.inf)[:, None, None]


class SlotCache(Cache):
    """One cache for all slots; a slot is begun by copying the KV of a prompt that was read elsewhere."""

    def __init__(self, layers: int, clock: SlotClock) -> None:
        self.clock = clock
        super().__init__(layers=[SlotLayer(clock) for _ in range(layers)])

    def begin(self, slot: int, prompt: DynamicCache, length: int) -> None:
        """Let `slot` hold the first `length` positions of `prompt` (a cache of one row), and nothing else."""
        for own, read in zip(self.layers, prompt.layers, strict=True):
            assert isinstance(own, SlotLayer)
            assert isinstance(read, DynamicLayer)
            assert read.keys is not None
            assert read.values is not None
            own.begin(slot, read.keys, read.values, length)
        self.clock.positions[slot] = length
