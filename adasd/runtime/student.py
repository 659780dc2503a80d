"""The draft model: an ordinary Llama of few layers whose head knows a part of the vocabulary only.

`TrimmedLlamaForCausalLM` is a model class like any other of transformers: logits span the whole vocabulary, -inf off
the ids it knows, so `generate` and assisted generation work with it as they are. A student folder may leave out what is
the target's anyway (embedding, head rows, tokenizer, generation config); `load_student` puts it back.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
)

from adasd.core.errors import InvalidRequest

EMBEDDING = "model.embed_tokens.weight"
HEAD = "lm_head.weight"
HEAD_IDS = "lm_head.vocab_ids"
WEIGHTS = "model.safetensors"


class TrimmedLlamaConfig(LlamaConfig):  # type: ignore[no-untyped-call]
    """head_size: ids the head knows, of `vocab_size`. base_model: the target it was trimmed from, for people."""

    model_type = "trimmed_llama"

    head_size: int = 8192
    base_model: str | None = None
    tie_word_embeddings: bool = False


class TrimmedHead(nn.Linear):
    """Logits of the ids in `vocab_ids` (int32 [head_size]); -inf for all others, [..., vocabulary]."""

    vocab_ids: torch.Tensor

    def __init__(self, config: TrimmedLlamaConfig) -> None:
        super().__init__(config.hidden_size, config.head_size, bias=False)
        self.vocabulary = config.vocab_size
        self.register_buffer("vocab_ids", torch.arange(config.head_size, dtype=torch.int32))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        known = super().forward(hidden)
        logits = known.new_full((*known.shape[:-1], self.vocabulary), -torch.inf)
        return logits.index_copy(-1, self.vocab_ids.long(), known)


class TrimmedLlamaForCausalLM(LlamaForCausalLM):  # type: ignore[no-untyped-call]
    """A Llama with a `TrimmedHead` that is not tied to the embedding."""

    config: TrimmedLlamaConfig
    config_class = TrimmedLlamaConfig
    _tied_weights_keys = {}  # noqa: RUF012 - typed by transformers
    _tp_plan = {}  # noqa: RUF012 - and a column of this head is a known id, not a place in the vocabulary

    def __init__(self, config: TrimmedLlamaConfig) -> None:
        super().__init__(config)
        self.lm_head = TrimmedHead(config)
        self.post_init()  # type: ignore[no-untyped-call]


AutoConfig.register(TrimmedLlamaConfig.model_type, TrimmedLlamaConfig)
AutoModelForCausalLM.register(TrimmedLlamaConfig, TrimmedLlamaForCausalLM)


def is_complete(folder: Path) -> bool:
    """Whether a student folder holds its embedding itself, so that its target is not needed to load it."""
    with safe_open(folder / WEIGHTS, framework="pt") as tensors:
        return EMBEDDING in tensors.keys()  # noqa: SIM118 - no mapping


def load_student(
    folder: Path, target: Path | PreTrainedModel | None = None, dtype: torch.dtype = torch.float32
) -> TrimmedLlamaForCausalLM:
    """The student in `folder`, on the CPU; embedding and head rows it leaves out come from `target`.

    target: a model folder or a loaded model. Raises InvalidRequest if it is missing or does not fit.
    """
    config = TrimmedLlamaConfig.from_pretrained(folder)
    state = load_file(folder / WEIGHTS)
    if EMBEDDING not in state:
        if target is None:
            raise InvalidRequest(f"{folder} has no embedding of its own; name the folder of its target", "target")
        state |= _borrowed(target, config, state[HEAD_IDS])
    loaded: Any = TrimmedLlamaForCausalLM.from_pretrained(
        None, config=config, state_dict=state, dtype=dtype, output_loading_info=True
    )
    student: TrimmedLlamaForCausalLM
    student, report = loaded
    if wrong := [*report["missing_keys"], *report["unexpected_keys"], *report["mismatched_keys"]]:
        raise InvalidRequest(f"{folder} does not hold the weights of its config: {', '.join(map(str, wrong))}", "model")
    if target is not None:
        student.generation_config = _generation_config(target)
    return student


def _borrowed(
    target: Path | PreTrainedModel, config: TrimmedLlamaConfig, vocab_ids: torch.Tensor
) -> dict[str, torch.Tensor]:
    embedding, head = _matrices(target)
    wanted = (config.vocab_size, config.hidden_size)
    if not embedding.shape == head.shape == wanted:
        raise InvalidRequest(f"the target's embedding is {(*embedding.shape,)}, the student needs {wanted}", "target")
    return {EMBEDDING: embedding, HEAD: head[vocab_ids.long()]}


def _matrices(target: Path | PreTrainedModel) -> tuple[torch.Tensor, torch.Tensor]:
    """Embedding and head of the target, [vocabulary, hidden] each; one and the same where they are tied."""
    if isinstance(target, PreTrainedModel):
        model: Any = target
        return model.get_input_embeddings().weight.detach(), model.get_output_embeddings().weight.detach()
    index = target / f"{WEIGHTS}.index.json"
    files = json.loads(index.read_text())["weight_map"] if index.exists() else {}
    embedding = _tensor(target / files.get(EMBEDDING, WEIGHTS), EMBEDDING)
    if embedding is None:
        raise InvalidRequest(f"no tensor {EMBEDDING} in {target}", "target")
    head = _tensor(target / files.get(HEAD, WEIGHTS), HEAD) if not index.exists() or HEAD in files else None
    return embedding, embedding if head is None else head


def _tensor(file: Path, name: str) -> torch.Tensor | None:
    with safe_open(file, framework="pt") as tensors:
        return tensors.get_tensor(name) if name in tensors.keys() else None  # noqa: SIM118 - no mapping


def _generation_config(target: Path | PreTrainedModel) -> GenerationConfig:
    if isinstance(target, PreTrainedModel):
        return target.generation_config
    return GenerationConfig.from_pretrained(target)
