"""Any decoder of transformers on a ragged batch: its own modules, our KV and our attention underneath."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer
from transformers.masking_utils import AttentionMaskInterface

from adasd.core.errors import InvalidRequest
from adasd.runtime.attention import Attention, RaggedBatch, Span
from adasd.runtime.filing import FilingCache
from adasd.runtime.kv import SessionKV

RAGGED_ATTENTION = "adasd_ragged"


class ModuleBody:
    """A model of transformers as it is, on its device and in its type. Raises InvalidRequest for one that cannot be
    served, with the reason.
    """

    columns: Tensor | None = None

    def __init__(self, model: PreTrainedModel) -> None:
        check_architecture(model)
        self._model: Any = model.eval()  # type: ignore[no-untyped-call]
        self._device = model.device
        config = model.config.get_text_config(decoder=True)
        self.layer_count, self.width = config.num_hidden_layers, config.vocab_size
        self._model.set_attn_implementation(RAGGED_ATTENTION)
        self._probe()

    @torch.inference_mode()
    def _probe(self) -> None:
        """One token, so that attention of a kind we do not know is refused before anybody is served."""
        kv = SessionKV(self.layer_count)
        kv.reserve(1, 1)
        self.forward([0], RaggedBatch([Span(kv, 0, 1)]), [0])

    def forward(self, ids: Sequence[int], batch: RaggedBatch, rows: Sequence[int]) -> Tensor:
        """Logits of some of the tokens, [rows, width]; writes the batch's KV."""
        if not ids:
            return torch.empty(0, self.width, device=self._device)
        read = self._model(
            input_ids=self._on(ids)[None],
            position_ids=self._on(batch.positions())[None],
            cache=FilingCache(self.layer_count, batch),
            use_cache=True,
            logits_to_keep=self._on(rows),
            ragged=batch,
        )
        logits: Tensor = read.logits[0]
        return logits

    def _on(self, numbers: Sequence[int]) -> Tensor:
        return torch.tensor(numbers, dtype=torch.int64, device=self._device)


def ragged_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    ragged: RaggedBatch,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """An attention function of transformers. query: [1, heads, tokens, width]; [1, tokens, heads, width]."""
    if s_aux is not None:
        raise InvalidRequest("attention with sinks cannot be served", "model")
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    rows = query[0].transpose(0, 1)
    read = ragged.attend(module.layer_idx, rows, Attention(scale, sliding_window, softcap))
    return read.view(1, *rows.shape[:2], -1), None


def no_mask(*args: Any, **kwargs: Any) -> None:
    """Positions and windows are the attention's to know."""


AttentionInterface.register(RAGGED_ATTENTION, ragged_attention)
AttentionMaskInterface.register(RAGGED_ATTENTION, no_mask)


def check_architecture(model: PreTrainedModel) -> None:
    """Refuse by name, with the reason, a model whose state is more than keys and values of its own layers.

    Sliding-window layers are fine: the whole history is kept and the attention hides what is outside the window, so a
    rollback finds everything it needs. Raises InvalidRequest.
    """
    architecture = model.config.model_type
    missing = {"cache", "logits_to_keep"} - inspect.signature(type(model).forward).parameters.keys()
    if missing:
        raise _refused(architecture, f"its forward takes no {' and no '.join(sorted(missing))}")
    for index, layer in enumerate(DynamicCache(config=model.config).layers):
        if type(layer) not in (DynamicLayer, DynamicSlidingWindowLayer):  # a subclass may hold more than both
            kind = type(layer).__name__
            raise _refused(architecture, f"layer {index} keeps a {kind}, which cannot be rolled back to any length")
    if model._is_stateful:
        raise _refused(architecture, "its recurrent state cannot be rolled back")
    if not model._supports_attention_backend:
        raise _refused(architecture, "its attention cannot be replaced")


def _refused(architecture: str, reason: str) -> InvalidRequest:
    return InvalidRequest(f"{architecture} cannot be served: {reason}", "model")
