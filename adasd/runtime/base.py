"""What a model looks like to a service: one forward over a ragged batch, release, info."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

Logits = TypeVar("Logits", covariant=True)


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What the two sides must agree on, and what clients may know.

    vocabulary: width of the logits. context_length: positions the model can attend to.
    vocabulary_fingerprint: hash over the token strings of the tokenizer, the special ids and the EOS set (not the padding).
    weights_fingerprint: identifies these weights; stored with every session.
    support: ids the model can give probability to, fewer than `vocabulary` for a trimmed head.
    """

    name: str
    vocabulary: int
    context_length: int
    eos_ids: tuple[int, ...]
    vocabulary_fingerprint: str
    weights_fingerprint: str
    support: int


@dataclass(frozen=True, slots=True)
class Segment:
    """One session's part of a batch: forget everything past `base`, then read `ids`.

    base: KV length to roll back to, at most what the session holds. ids: tokens of positions base, base + 1, ...
    rows: of how many trailing positions logits are wanted (0: prefill only).
    """

    session: bytes
    base: int
    ids: Sequence[int]
    rows: int


class CausalRuntime(Protocol[Logits]):
    """A causal language model with one rollable KV cache per session. Not thread-safe: one thread owns it."""

    def forward(self, batch: Sequence[Segment]) -> Sequence[Logits]:
        """Per segment the logits of its last `rows` positions, [rows, vocabulary], on the device.

        Raises SessionNotFound if `base` exceeds what the session holds, ContextLengthExceeded past the last position.
        """
        ...

    def release(self, session: bytes) -> None:
        """Drop the session's KV; unknown sessions are fine."""
        ...

    def info(self) -> ModelInfo: ...
