"""A draft model whose only session goes on with its block in one go."""

from __future__ import annotations

from torch import Tensor

from adasd.core.drafting import Block
from adasd.core.processing import Edits
from adasd.core.types import SamplingParams
from adasd.kernels.blocks import MOST, Followed, Rest
from adasd.kernels.device import DeviceKernels
from adasd.kernels.warping import uncuts
from adasd.runtime.decoder import Decoder
from adasd.runtime.kv import SessionKV


class Alone:
    """Takes the steps of a block after its first pass. Owned by the thread that owns the model."""

    def __init__(self, decoder: Decoder, support: int, kernels: DeviceKernels) -> None:
        columns = None if kernels.columns is None else kernels.columns.ids
        self._rest = Rest(decoder.width, support, columns)
        self._stack = decoder.repeating(self._rest)
        self._width = decoder.width
        self.disturb = self._rest.disturb

    @classmethod
    def of(cls, decoder: Decoder, kernels: DeviceKernels) -> Alone | None:
        """None where the model's passes are no whole programs, or rows the whole vocabulary."""
        return cls(decoder, kernels.support, kernels) if decoder.is_whole and kernels.support is not None else None

    def follow(
        self, kv: SessionKV, block: Block, sampling: SamplingParams, edits: Edits | None, logits: Tensor
    ) -> Followed | None:
        """As much of a block as can be had at once from the logits of its next row, [width]; None if none of it can.

        What the passes read is in the KV then.
        """
        if edits is not None or not self._suits(block, sampling):
            return None
        self._rest.logits[0] = logits.numpy()
        found = self._stack.repeat(kv, block, sampling.temperature, kv.capacity - kv.length + 1)
        kv.length += found.passes
        return found if found.drafted.ids or found.drafted.ended else None

    def _suits(self, block: Block, sampling: SamplingParams) -> bool:
        """Whether its rows are drawn as they are."""
        plain = not sampling.greedy and not block.plan.coupled and uncuts(sampling, self._width)
        return plain and max(block.plan.max_candidates, len(block.eos_ids)) <= MOST
