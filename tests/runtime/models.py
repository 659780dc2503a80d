"""Small seeded models of several architectures, and what a full forward of each says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from adasd.core.messages import ModelInfo
from adasd.core.types import FloatArray
from adasd.kernels.tiles import STEP
from adasd.runtime.base import CausalRuntime, Segment
from adasd.runtime.decoder import Decoder
from adasd.runtime.modules import ModuleBody
from adasd.runtime.ragged import RaggedRuntime
from adasd.runtime.slots import SlotPool
from adasd.runtime.slotted import SlottedRuntime
from adasd.runtime.static import SHORT, StaticBody
from adasd.runtime.student import TrimmedLlamaConfig, TrimmedLlamaForCausalLM
from adasd.runtime.toy import ToyRuntime, ToySpec

VOCABULARY = 96
CONTEXT = 64
WINDOW = 6
CHUNK = 5
"""Smaller than most segments of the tests, so that chunks are crossed."""

SHAPE: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT,
    "initializer_range": 0.5,  # the usual 0.02 gives logits too flat to tell a wrong cache
    "bos_token_id": 1,
    "eos_token_id": 0,
    "pad_token_id": 0,
}


@dataclass(frozen=True, slots=True)
class Subject:
    """A runtime and its oracle: logits of all positions from one pass without any cache, [length, width]."""

    runtime: CausalRuntime[Any]
    full: Callable[[Sequence[int]], FloatArray]
    width: int = VOCABULARY


def info(vocabulary: int = VOCABULARY, context_length: int = CONTEXT) -> ModelInfo:
    return ModelInfo("tiny", vocabulary, context_length, (0,), "vocabulary", "weights", vocabulary)


def llama(**shape: int) -> PreTrainedModel:
    return LlamaForCausalLM(LlamaConfig(**SHAPE, **shape))


def qwen2(**shape: int) -> PreTrainedModel:
    return Qwen2ForCausalLM(Qwen2Config(**SHAPE, **shape))


def mistral(**shape: int) -> PreTrainedModel:
    return MistralForCausalLM(MistralConfig(**SHAPE, **shape, sliding_window=None))


def mistral_sliding() -> PreTrainedModel:
    return MistralForCausalLM(MistralConfig(**SHAPE, sliding_window=WINDOW))


def gemma3() -> PreTrainedModel:
    """Sliding-window and full layers in turn."""
    layers = ["sliding_attention", "full_attention", "sliding_attention"]
    return Gemma3ForCausalLM(Gemma3TextConfig(**SHAPE, sliding_window=WINDOW, layer_types=layers, head_dim=8))


def student(**shape: int) -> PreTrainedModel:
    model = TrimmedLlamaForCausalLM(TrimmedLlamaConfig(**SHAPE, **shape, head_size=20))
    model.lm_head.vocab_ids.copy_(torch.arange(0, 60, 3))
    return model


ARCHITECTURES: dict[str, Callable[..., PreTrainedModel]] = {
    "llama": llama,
    "qwen2": qwen2,
    "mistral": mistral,
    "mistral-sliding": mistral_sliding,
    "gemma3": gemma3,
    "student": student,
}
WRITTEN_OUT = ["llama", "qwen2", "mistral", "student"]
"""Those that a `Decoder` serves too: with attention of the library's, and of its own where heads are wide enough."""
SUBJECTS = [
    "toy",
    *ARCHITECTURES,
    *(f"decoder {name}" for name in WRITTEN_OUT),
    *(f"wide {name}" for name in WRITTEN_OUT),
    *(f"static {name}" for name in ARCHITECTURES),
]


@cache
def model(name: str, **shape: int) -> PreTrainedModel:
    torch.manual_seed(0)
    return ARCHITECTURES[name](**shape).eval()


@cache
def subject(name: str) -> Subject:
    if name == "toy":
        spec = ToySpec(seed=5, vocab=VOCABULARY, context=CONTEXT)
        return Subject(ToyRuntime(spec), lambda ids: read_once(ToyRuntime(spec), ids))
    kind, _, architecture = name.rpartition(" ")
    network = model(architecture, head_dim=STEP) if kind == "wide" else model(architecture)
    if kind == "static":
        return torch_subject(network, slotted(architecture))
    body = Decoder(network, CONTEXT, "float32") if kind else ModuleBody(deepcopy(network))
    return torch_subject(network, RaggedRuntime(body, info()))


def slotted(name: str, slots: int = 100) -> SlottedRuntime:
    """The modules of a small model at fixed shapes."""
    network = deepcopy(model(name))
    pool = SlotPool(network.config.num_hidden_layers, slots, CONTEXT + SHORT)
    return SlottedRuntime(StaticBody(network, pool), pool, info())


def ragged(name: str, kv_positions: int | None = None) -> RaggedRuntime:
    """The modules of a small model as a runtime."""
    return RaggedRuntime(ModuleBody(deepcopy(model(name))), info(), kv_positions)


def torch_subject(network: PreTrainedModel, runtime: RaggedRuntime | SlottedRuntime) -> Subject:
    columns = slice(None) if runtime.columns is None else runtime.columns

    @torch.inference_mode()
    def full(ids: Sequence[int]) -> FloatArray:
        logits = network(input_ids=torch.tensor([list(ids)]), use_cache=False).logits[0]
        return logits[:, columns].double().numpy()

    width = runtime.info().vocabulary if runtime.columns is None else len(runtime.columns)
    return Subject(runtime, full, width)


def read_once(runtime: CausalRuntime[Any], ids: Sequence[int]) -> FloatArray:
    (logits,) = runtime.forward([Segment(b"whole", 0, list(ids), len(ids))])
    return np.asarray(logits)
