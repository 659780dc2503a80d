"""What transformers takes for a cache during one pass: the KV behind it belongs to whoever serves the sessions."""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor
from transformers import Cache
from transformers.cache_utils import CacheLayerMixin


class Filed(Protocol):
    """One pass over some sessions. reach: positions of the keys that `file` returns; None: those of the pass itself."""

    reach: int | None

    def file(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Keep what a layer computed for the pass's tokens; keys and values that its attention is handed.

        keys, values: [rows, key heads, tokens, width].
        """
        ...


class FilingLayer(CacheLayerMixin):  # type: ignore[no-untyped-call]
    """One layer of `FilingCache`."""

    def __init__(self, index: int, filed: Filed) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._index, self._filed = index, filed

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Nothing to do: sessions allocate."""

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        return self._filed.file(self._index, key_states, value_states)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return query_length if self._filed.reach is None else self._filed.reach, 0

    def get_seq_length(self) -> int:
        return 0

    def get_max_length(self) -> int:
        return -1


class FilingCache(Cache):
    """For one pass."""

    def __init__(self, layers: int, filed: Filed) -> None:
        super().__init__(layers=[FilingLayer(index, filed) for index in range(layers)])
