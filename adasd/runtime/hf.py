"""Causal language models of transformers behind `CausalRuntime`: one rollable cache per session."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from transformers import DynamicCache, PreTrainedModel

from adasd.core.errors import InvalidRequest
from adasd.core.messages import ModelInfo
from adasd.runtime.base import Segment
from adasd.runtime.cache import check_architecture, roll_back, rollable_cache
from adasd.runtime.segments import check_batch

DEFAULT_CHUNK = 512


class HFRuntime:
    """`CausalRuntime[torch.Tensor]`: logits [rows, vocabulary] in the model's type, on its device.

    Whatever the split into forwards and rollbacks, logits equal those of one full forward but for rounding.
    Segments of a batch are read one after the other, at most `prefill_chunk` positions in a pass.
    A forward that fails leaves the session at the segment's `base`.
    """

    def __init__(self, model: PreTrainedModel, info: ModelInfo, prefill_chunk: int = DEFAULT_CHUNK) -> None:
        if prefill_chunk < 1:
            raise InvalidRequest(f"prefill_chunk must be at least 1, got {prefill_chunk}", "prefill_chunk")
        check_architecture(model)
        self._model = model.eval()  # type: ignore[no-untyped-call]
        self._info = info
        self._chunk = prefill_chunk
        self._caches: dict[bytes, DynamicCache] = {}

    def info(self) -> ModelInfo:
        return self._info

    @torch.inference_mode()
    def forward(self, batch: Sequence[Segment]) -> Sequence[torch.Tensor]:
        held = {session: cache.get_seq_length() for session, cache in self._caches.items()}
        check_batch(batch, held, self._info)
        return [self._read(segment) for segment in batch]

    def release(self, session: bytes) -> None:
        self._caches.pop(session, None)

    def _read(self, segment: Segment) -> torch.Tensor:
        if segment.session not in self._caches:
            self._caches[segment.session] = rollable_cache(self._model.config)
        cache = self._caches[segment.session]
        roll_back(cache, segment.base)
        try:
            passes = [self._pass(cache, ids, keep) for ids, keep in _chunks(segment, self._chunk)]
        except BaseException:
            roll_back(cache, segment.base)  # KV below base was never written to
            raise
        return torch.cat(passes) if passes else torch.empty(0, self._info.vocabulary, device=self._model.device)

    def _pass(self, cache: DynamicCache, ids: Sequence[int], keep: int) -> torch.Tensor:
        """Read `ids` after what the cache holds; logits of the last `keep` positions, [keep, vocabulary]."""
        device = self._model.device
        positions = torch.arange(len(ids) - keep, len(ids), device=device)  # an int would read 0 as all
        read = self._model(
            input_ids=torch.tensor([list(ids)], device=device), cache=cache, use_cache=True, logits_to_keep=positions
        )
        logits: torch.Tensor = read.logits[0]
        return logits


def _chunks(segment: Segment, size: int) -> Iterator[tuple[Sequence[int], int]]:
    """The segment's ids in passes of at most `size`, each with the number of trailing positions to get logits of."""
    ids, first_row = segment.ids, len(segment.ids) - segment.rows
    for start in range(0, len(ids), size):
        chunk = ids[start : start + size]
        yield chunk, max(0, min(len(chunk), start + len(chunk) - first_row))
