"""The committed tokens of one generation, and the hash every message carries of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

HASH_BYTES = 16


def pack_ids(ids: Sequence[int]) -> bytes:
    """Token ids as little-endian uint32."""
    return np.asarray(ids, dtype="<u4").tobytes()


def unpack_ids(packed: bytes) -> list[int]:
    """The inverse of `pack_ids`."""
    ids: list[int] = np.frombuffer(packed, dtype="<u4").tolist()
    return ids


class ContextHash:
    """`context_hash` of a text that grows: what is added costs its own length only."""

    def __init__(self) -> None:
        self._hasher = blake2b(digest_size=HASH_BYTES)

    def after(self, ids: Sequence[int]) -> ContextHash:
        """Of the text with these ids at its end; this one stays as it is."""
        longer = ContextHash()
        longer._hasher = self._hasher.copy()
        longer._hasher.update(pack_ids(ids))
        return longer

    @property
    def digest(self) -> bytes:
        """blake2b of all ids, 16 bytes."""
        return self._hasher.copy().digest()


def context_hash(ids: Sequence[int]) -> bytes:
    """blake2b over the packed ids: of a prefix, whichever way the prefix was assembled."""
    return blake2b(pack_ids(ids), digest_size=HASH_BYTES).digest()


def shared_prefix(left: Sequence[int], right: Sequence[int]) -> int:
    """Length of the longest common prefix of two lists."""
    length = min(len(left), len(right))
    if left[:length] == right[:length]:
        return length
    return next(i for i in range(length) if left[i] != right[i])


class Text:
    """Prompt and committed tokens; append-only. prompt_length: of the ids, where some of them are generated."""

    def __init__(self, ids: Iterable[int], prompt_length: int | None = None) -> None:
        self.ids: list[int] = list(ids)
        self.prompt_length = len(self.ids) if prompt_length is None else prompt_length
        self._array: NDArray[np.uint32] | None = None  # with room to grow, once it is asked for

    @property
    def base(self) -> int:
        """Committed length: prompt and generated tokens."""
        return len(self.ids)

    @property
    def generated(self) -> int:
        return self.base - self.prompt_length

    @property
    def array(self) -> NDArray[np.uint32]:
        """`ids` as they are now."""
        if self._array is None:
            self._array = np.array(self.ids, dtype=np.uint32)
        return self._array[: len(self.ids)]

    def extend(self, tokens: Sequence[int]) -> None:
        """Append committed tokens."""
        length = len(self.ids)
        self.ids.extend(tokens)
        if self._array is None:
            return
        if len(self.ids) > len(self._array):
            self._array = np.concatenate([self._array[:length], np.empty(len(self.ids), dtype=np.uint32)])
        self._array[length : len(self.ids)] = tokens


class Context(Text):
    """A text, hashed as it grows."""

    def __init__(self, prompt: Iterable[int]) -> None:
        super().__init__(prompt)
        self._hasher = blake2b(pack_ids(self.ids), digest_size=HASH_BYTES)

    @property
    def hash(self) -> bytes:
        """blake2b of ids[:base], 16 bytes."""
        return self._hasher.copy().digest()

    def extend(self, tokens: Sequence[int]) -> None:
        """Append committed tokens."""
        super().extend(tokens)
        self._hasher.update(pack_ids(tokens))
