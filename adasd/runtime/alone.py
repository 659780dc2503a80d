"""A session that has a model to itself: its passes follow one another without a word of Python where none is needed."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple, Protocol

from torch import Tensor

from adasd.core.drafting import Drafted
from adasd.core.types import PLAIN
from adasd.kernels import blocks, rounds
from adasd.kernels.device import DeviceKernels
from adasd.kernels.follow import Spent
from adasd.kernels.warping import uncuts
from adasd.runtime.decoder import Decoder
from adasd.runtime.kv import SessionKV
from adasd.runtime.options import Role
from adasd.runtime.passes import Pass, Taken


class Followed(NamedTuple):
    """outcome: what the job is told. read: what passes after the first one read; it is in the session's KV.

    seconds: in these passes.
    """

    outcome: Drafted | Taken
    read: Sequence[int]
    seconds: float


class Alone(Protocol):
    """Takes the passes after a session's first one. Owned by the thread that owns the model."""

    def follow(self, kv: SessionKV, wanted: Pass, logits: Tensor) -> Followed | None:
        """More of what a pass was for than its row, whose logits these are, [1, width]; None where there is no more."""
        ...

    def disturb(self, waiting: bool) -> None:
        """Let no pass begin while somebody waits. From any thread."""
        ...


def alone(role: Role, decoder: Decoder, kernels: DeviceKernels) -> Alone | None:
    """None where the model's passes are no whole programs, or a draft's rows the whole vocabulary."""
    if not decoder.is_whole:
        return None
    if role == "target":
        return AloneInRounds(decoder)
    return None if kernels.support is None else AloneInBlocks(decoder, kernels.support, kernels)


class AloneInBlocks:
    """With the rest of a block."""

    def __init__(self, decoder: Decoder, support: int, kernels: DeviceKernels) -> None:
        self._rest = blocks.Rest(decoder.width, support, None if kernels.columns is None else kernels.columns.ids)
        self._stack, self.disturb = decoder.followed(self._rest), self._rest.disturb

    def follow(self, kv: SessionKV, wanted: Pass, logits: Tensor) -> Followed | None:
        block, sampling = wanted.block, wanted.sampling
        if block is None or block.plan.coupled or sampling.greedy or block.plan.max_candidates > blocks.MOST:
            return None
        if not _is_plain(wanted, self._rest.logits.shape[1], block.eos_ids, blocks.MOST):
            return None
        self._rest.logits[:] = logits.numpy()
        room = kv.capacity - kv.length + 1
        drafted, spent = self._rest.follow(block, sampling.temperature, room, self._stack.ready(kv))
        return _followed(kv, drafted, drafted.ids, spent) if drafted.ids or drafted.ended else None


class AloneInRounds:
    """With rounds without candidates."""

    def __init__(self, decoder: Decoder) -> None:
        self._run = rounds.Run(decoder.width)
        self._stack, self.disturb = decoder.followed(self._run), self._run.disturb

    def follow(self, kv: SessionKV, wanted: Pass, logits: Tensor) -> Followed | None:
        run, sampling = wanted.run, wanted.sampling
        if run is None or not _is_plain(wanted, self._run.logits.shape[1], run.eos_ids, rounds.MOST):
            return None
        self._run.logits[:] = logits.numpy()
        limit = min(run.limit, kv.capacity - kv.length + 1)
        asked = run.base, limit, run.draws, run.eos_ids, sampling.temperature
        tokens, spent = self._run.follow(*asked, self._stack.ready(kv))
        return _followed(kv, Taken(tokens), tokens, spent) if tokens else None


def _is_plain(wanted: Pass, width: int, eos_ids: Collection[int], most: int) -> bool:
    """Whether rows are as the model gives them, and it is known where the text ends."""
    plain = wanted.sampling.processing == PLAIN and uncuts(wanted.sampling, width)
    return plain and len(eos_ids) <= most


def _followed(kv: SessionKV, outcome: Drafted | Taken, tokens: Sequence[int], spent: Spent) -> Followed:
    kv.length += spent.passes
    return Followed(outcome, tokens[: spent.passes], spent.seconds)
