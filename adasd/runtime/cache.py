"""KV caches that can be put back to any earlier length, exactly and without copying."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from transformers import DynamicCache, PreTrainedConfig, PreTrainedModel
from transformers.cache_utils import DummyLayer, DynamicLayer, DynamicSlidingWindowLayer

from adasd.core.errors import InvalidRequest

HEADROOM = 64
"""Positions allocated beyond what is needed, or a quarter of it if that is more."""


class RollableLayer(DynamicLayer):  # type: ignore[no-untyped-call]
    """A full-attention layer over a buffer that grows in steps: reading and rolling back move its end.

    `DynamicLayer` copies the whole cache at every token. Here `keys` and `values`, [1, heads, length, width], are views
    of buffers with room to spare; `crop` (inherited) shortens the views, and `update` writes after their end.
    """

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        super().lazy_initialization(key_states, value_states)
        self._key_room = self.keys = key_states[..., :0, :]
        self._value_room = self.values = value_states[..., :0, :]

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        start = self.get_seq_length()
        self._key_room, self.keys = _appended(self._key_room, start, key_states)
        self._value_room, self.values = _appended(self._value_room, start, value_states)
        return self.keys, self.values


def _appended(room: torch.Tensor, start: int, states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The buffer holding `states` from position `start` on, and the view of it that ends there."""
    end = start + states.shape[-2]
    if end > room.shape[-2]:
        grown = states.new_empty((*states.shape[:-2], end + max(HEADROOM, end // 4), states.shape[-1]))
        grown[..., :start, :] = room[..., :start, :]
        room = grown
    room[..., start:end, :] = states
    return room, room[..., :end, :]


def rollable_cache(config: PreTrainedConfig) -> DynamicCache:
    """An empty cache of that architecture in which every layer can be rolled back to any length.

    Sliding-window layers keep the whole history: the model's mask, made from positions, hides what is outside the
    window, and a rollback finds everything it needs. Raises InvalidRequest for a layer with any other kind of state.
    """
    cache = DynamicCache(config=config)
    cache.layers = [_rollable(layer, index, config.model_type) for index, layer in enumerate(cache.layers)]
    return cache


def _rollable(layer: object, index: int, architecture: str) -> RollableLayer | DummyLayer:
    if isinstance(layer, DummyLayer):  # holds nothing: no attention here, or the KV of another layer
        return layer
    if type(layer) in (DynamicLayer, DynamicSlidingWindowLayer):  # a subclass may hold more than keys and values
        return RollableLayer()  # type: ignore[no-untyped-call]
    kind = type(layer).__name__
    reason = f"layer {index} keeps a {kind}, which cannot be rolled back to any length"
    raise InvalidRequest(f"{architecture} cannot be served: {reason}", "model")


def roll_back(cache: DynamicCache, length: int) -> None:
    """Forget every position from `length` on, also where a failed pass has reached some layers only."""
    for layer in cache.layers:
        if isinstance(layer, RollableLayer):
            layer.crop(min(0, length - layer.get_seq_length()))


def check_architecture(model: PreTrainedModel) -> None:
    """Refuse by name, with the reason, a model that cannot be rolled back. Raises InvalidRequest."""
    architecture = model.config.model_type
    missing = {"cache", "logits_to_keep"} - inspect.signature(type(model).forward).parameters.keys()
    if missing:
        arguments = " and no ".join(sorted(missing))
        raise InvalidRequest(f"{architecture} cannot be served: its forward takes no {arguments}", "model")
    rollable_cache(model.config)
    if model._is_stateful:
        raise InvalidRequest(f"{architecture} cannot be served: its recurrent state cannot be rolled back", "model")
