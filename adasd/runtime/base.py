"""What a model looks like to a service: one forward over a ragged batch, release, info."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

from adasd.core.messages import ModelInfo

if TYPE_CHECKING:
    from torch import Tensor

    from adasd.runtime.alone import Followed
    from adasd.runtime.passes import Pass

Logits = TypeVar("Logits", covariant=True)


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

    @property
    def allocated(self) -> int:
        """Positions of KV that all sessions together take up."""
        ...

    def reserve(self, session: bytes, length: int) -> None:
        """Room for `length` positions of the session. Raises Overloaded if there is none."""
        ...

    def fork(self, source: bytes, session: bytes, length: int) -> None:
        """Let a new session hold the first `length` positions of another. Raises SessionNotFound, Overloaded."""
        ...

    def rename(self, session: bytes, name: bytes) -> None:
        """What a session held is held under another name. Raises SessionNotFound."""
        ...

    def release(self, session: bytes) -> None:
        """Drop the session's KV; unknown sessions are fine."""
        ...

    def info(self) -> ModelInfo: ...


@runtime_checkable
class Following(Protocol):
    """A runtime that may go on by itself with what a session's pass was for."""

    def follow(self, wanted: Pass, logits: Any) -> Followed | None:
        """More of it than the pass's row, whose logits these are, [1, width]; None where there is no more to be had.

        What further passes read is in the session's KV then.
        """
        ...

    def disturb(self, waiting: bool) -> None:
        """Let no pass begin by itself while somebody waits. From any thread."""
        ...


class TorchRuntime(CausalRuntime["Tensor"], Protocol):
    """One in this process."""

    @property
    def columns(self) -> Tensor | None:
        """The token id of each column of the logits; None: the column itself."""
        ...

    def capacity(self, session: bytes) -> int:
        """Positions the session has room for."""
        ...

    def check(self, batch: Sequence[Segment]) -> None:
        """Raise what `forward` would, but for Overloaded."""
        ...
