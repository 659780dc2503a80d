"""Decoders of the Llama family written out for the CPU: few, large operations on a ragged batch, packed weights.

The modules of transformers take some 40 small operations a layer, which at few rows cost as much as the products; here
compiled loops do all but a few (`fused.py`). Same weights, same formulas (Llama 2, arXiv 2307.09288, section 2.2),
compared in tests.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import embedding
from transformers import PreTrainedModel

from adasd.runtime.attention import Attention, RaggedBatch, attend
from adasd.runtime.fused import Sweep
from adasd.runtime.linear import Precision, Product, product
from adasd.runtime.pointwise import Gates, Residual
from adasd.runtime.student import TrimmedHead

ARCHITECTURES = ("llama", "qwen2", "mistral", "trimmed_llama")
ROTARY_TYPES = ("default", "linear", "llama3", "yarn")
"""Kinds of position embedding whose angles depend on the position only."""


@dataclass(frozen=True, slots=True)
class Layer:
    """One decoder layer. qkv, gate_up: products of several matrices at once."""

    attention_norm: Tensor
    qkv: Product
    output: Product
    feed_forward_norm: Tensor
    gate_up: Product
    down: Product


class Decoder:
    """A model of `ARCHITECTURES` in float32. precision: of weights and products.

    columns: int64 [width of the logits], the token id of each column, ascending; None: the column itself.
    """

    def __init__(self, model: PreTrainedModel, length: int, precision: Precision) -> None:
        config, untyped = model.config.get_text_config(decoder=True), _untyped(model)
        body, head = untyped.model, untyped.lm_head
        self.layer_count = config.num_hidden_layers
        self._heads, self._key_heads = config.num_attention_heads, config.num_key_value_heads
        self._width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        self._kind = Attention(self._width**-0.5)
        self._epsilon, self._between = config.rms_norm_eps, config.intermediate_size
        self._rotations = rotations(model, length).numpy()
        self._embedding, self._norm = body.embed_tokens.weight.detach(), body.norm.weight.detach()
        self._layers = [self._layer(layer, precision) for layer in body.layers]
        weight, self.columns = head.weight.detach(), None
        if isinstance(head, TrimmedHead):
            self.columns, order = head.vocab_ids.long().sort()
            weight = weight[order]
        self._head, self.width = product(weight, None, precision), len(weight)

    def _layer(self, layer: Any, precision: Precision) -> Layer:
        attention, feed_forward = layer.self_attn, layer.mlp
        rotated = self._heads + self._key_heads
        qkv, bias = _joined(attention.q_proj, attention.k_proj, attention.v_proj)
        order = interleaved(rotated, self._width, len(qkv))
        return Layer(
            layer.input_layernorm.weight.detach(),
            product(qkv[order], None if bias is None else bias[order], precision),
            product(*_joined(attention.o_proj), precision),
            layer.post_attention_layernorm.weight.detach(),
            product(*_joined(feed_forward.gate_proj, feed_forward.up_proj), precision),
            product(*_joined(feed_forward.down_proj), precision),
        )

    def forward(self, ids: Tensor, positions: Tensor, batch: RaggedBatch, rows: Tensor) -> Tensor:
        """Logits of some of the tokens, [rows, width]; writes the batch's KV. All arguments int64 [n].

        positions: those of the spans, which the KV knows.
        """
        return self._head(self._hidden(ids, batch)[rows])

    def _hidden(self, ids: Tensor, batch: RaggedBatch) -> Tensor:
        heads = self._heads, self._key_heads, self._width
        sweep = Sweep(batch.spans, heads, self._rotations, self._kind.scale)
        x = embedding(ids, self._embedding)
        residual, gates = Residual(x, self._epsilon), Gates(len(x), self._between)
        addend = torch.zeros_like(x)
        for index, layer in enumerate(self._layers):
            normed = residual.add(addend, layer.attention_norm)
            addend = layer.output(self._read(index, layer.qkv(normed), sweep, batch))
            normed = residual.add(addend, layer.feed_forward_norm)
            addend = layer.down(gates(layer.gate_up(normed)))
        return residual.add(addend, self._norm)

    def _read(self, index: int, qkv: Tensor, sweep: Sweep, batch: RaggedBatch) -> Tensor:
        split = qkv.view(len(qkv), -1, self._width)
        out = torch.empty(len(qkv), self._heads, self._width)
        sweep.read(index, split, out)
        for span in sweep.many:
            queries, kv = split[span.start : span.end, : self._heads], span.kv.read(index, span.reach)
            out[span.start : span.end] = attend(queries, *kv, self._kind).view(-1, self._heads, self._width)
        return out.flatten(1)


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
