"""Decoders of the Llama family written out for the CPU: few, large operations on a ragged batch, packed weights.

The modules of transformers take some 40 small operations a layer, which at few rows cost as much as the products; here
compiled loops do all but a few (`stack.py`). Same weights, same formulas (Llama 2, arXiv 2307.09288, section 2.2),
compared in tests.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from adasd.kernels.follow import Follower
from adasd.runtime.attention import RaggedBatch
from adasd.runtime.linear import Precision, product
from adasd.runtime.stack import Layer, Sizes, Stack, Weights
from adasd.runtime.student import TrimmedHead

ARCHITECTURES = ("llama", "qwen2", "mistral", "trimmed_llama")
ROTARY_TYPES = ("default", "linear", "llama3", "yarn")
"""Kinds of position embedding whose angles depend on the position only."""


class Decoder:
    """A model of `ARCHITECTURES` in float32. precision: of weights and products.

    columns: int64 [width of the logits], the token id of each column, ascending; None: the column itself.
    """

    def __init__(self, model: PreTrainedModel, length: int, precision: Precision) -> None:
        config, untyped = model.config.get_text_config(decoder=True), _untyped(model)
        body = untyped.model
        self.layer_count = config.num_hidden_layers
        width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        self._sizes = Sizes(
            config.hidden_size,
            config.intermediate_size,
            config.num_attention_heads,
            config.num_key_value_heads,
            width,
        )
        head, self.columns = untyped.lm_head.weight.detach(), None
        if isinstance(untyped.lm_head, TrimmedHead):
            self.columns, order = untyped.lm_head.vocab_ids.long().sort()
            head = head[order]
        self.width = len(head)
        embedding, norm = body.embed_tokens.weight.detach().contiguous(), body.norm.weight.detach()
        layers = [self._layer(layer, precision) for layer in body.layers]
        weights = Weights(embedding, layers, norm, product(head, None, precision), self.width)
        self._made = weights, self._sizes, config.rms_norm_eps, rotations(model, length).numpy()
        self._stack = Stack(*self._made)

    def _layer(self, layer: Any, precision: Precision) -> Layer:
        attention, feed_forward = layer.self_attn, layer.mlp
        rotated = self._sizes.heads + self._sizes.key_heads
        qkv, bias = _joined(attention.q_proj, attention.k_proj, attention.v_proj)
        order = interleaved(rotated, self._sizes.width, len(qkv))
        return Layer(
            layer.input_layernorm.weight.detach(),
            product(qkv[order], None if bias is None else bias[order], precision),
            product(*_joined(attention.o_proj), precision),
            layer.post_attention_layernorm.weight.detach(),
            product(*_joined(feed_forward.gate_proj, feed_forward.up_proj), precision),
            product(*_joined(feed_forward.down_proj), precision),
        )

    @property
    def is_whole(self) -> bool:
        """Whether a pass over a token is one program."""
        return self._stack.is_whole

    def followed(self, follower: Follower) -> Stack:
        """The same weights, for passes that follow one another by themselves."""
        return Stack(*self._made, follower)

    def forward(self, ids: Sequence[int], batch: RaggedBatch, rows: Sequence[int]) -> Tensor:
        """Logits of some of the tokens, [rows, width]; writes the batch's KV."""
        return self._stack.read(ids, batch.spans, rows)


def suits(model: PreTrainedModel) -> bool:
    """Whether `Decoder` computes what this model does; transformers' own modules serve all others."""
    config = model.config.get_text_config(decoder=True)
    rotary = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
    windows = set(getattr(config, "layer_types", None) or ()) - {"full_attention"}
    window = getattr(config, "sliding_window", None)
    return (
        config.model_type in ARCHITECTURES
        and config.hidden_act == "silu"
        and rotary in ROTARY_TYPES
        and not windows
        and (window is None or config.model_type != "mistral")
        and model.dtype is torch.float32
        and model.device.type == "cpu"
    )


def rotations(model: PreTrainedModel, length: int) -> Tensor:
    """cos and sin of every position below `length` and half the dimensions, float32 [length, width / 2, 2]."""
    rotary: Any = _untyped(model).model.rotary_emb
    cos, sin = rotary(torch.zeros(1), position_ids=torch.arange(length)[None])
    half = cos.shape[-1] // 2
    return torch.stack([cos[0, :, :half], sin[0, :, :half]], -1)


def interleaved(rotated: int, width: int, rows: int) -> Tensor:
    """Order of a joint projection's outputs that puts dimension i beside i + width / 2 in the first `rotated` heads.

    The two are the parts of one complex number. Queries and keys are reordered alike: their products stay the same.
    """
    pairs = torch.arange(width).view(2, -1).T.reshape(-1)
    heads = torch.arange(rotated)[:, None] * width + pairs
    return torch.cat([heads.reshape(-1), torch.arange(rotated * width, rows)])


def _joined(*linears: Any) -> tuple[Tensor, Tensor | None]:
    """Weights and biases of layers that read the same, one after the other."""
    bias = [linear.bias.detach() for linear in linears if linear.bias is not None]
    return torch.cat([linear.weight.detach() for linear in linears]), torch.cat(bias) if bias else None


def _untyped(model: PreTrainedModel) -> Any:
    return model
