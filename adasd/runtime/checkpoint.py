"""Model folders of transformers: weights, tokenizer and generation config to an `HFRuntime`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from adasd.core.errors import InvalidRequest
from adasd.core.messages import ModelInfo
from adasd.runtime.fingerprint import text_fingerprint, vocabulary_fingerprint, weights_fingerprint
from adasd.runtime.hf import HFRuntime
from adasd.runtime.options import Role, RuntimeOptions
from adasd.runtime.student import TrimmedLlamaConfig, is_complete, load_student


def load_checkpoint(folder: Path, role: Role, options: RuntimeOptions) -> HFRuntime:
    """The model in `folder`, on its device; a student is known by its config. Nothing is looked up on the network.

    Raises InvalidRequest for a folder, a device or an architecture that cannot be served, with the reason.
    """
    device = _device(options.device)
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    if _architecture(folder) == TrimmedLlamaConfig.model_type:
        model, sources = _student(folder, role, options)
    else:
        model, sources = _model(folder, options), (folder,)
    info = _info(model, sources, options)
    placed: Any = model.requires_grad_(False)
    return HFRuntime(placed.to(device), info, options.prefill_chunk)


def _architecture(folder: Path) -> str:
    config = folder / "config.json"
    if not config.is_file():
        raise InvalidRequest(f"no model in {folder}: it has no config.json", "model")
    return str(json.loads(config.read_text(encoding="utf-8")).get("model_type"))


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise InvalidRequest(f"unknown device {name!r}: {error}", "device") from None
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise InvalidRequest(f"device {name!r} is not available", "device")
    return device


def _model(folder: Path, options: RuntimeOptions) -> PreTrainedModel:
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
        folder, dtype=getattr(torch, options.dtype), local_files_only=True
    )
    return model


def _student(folder: Path, role: Role, options: RuntimeOptions) -> tuple[PreTrainedModel, tuple[Path, ...]]:
    """The student, and the folders it is made of."""
    if role == "target":
        raise InvalidRequest(f"{folder} knows a part of the vocabulary only; it cannot be a target", "model")
    target = None if is_complete(folder) else options.target
    student = load_student(folder, target, getattr(torch, options.dtype))
    return student, (folder,) if target is None else (folder, target)


def _info(model: PreTrainedModel, sources: Sequence[Path], options: RuntimeOptions) -> ModelInfo:
    config = model.config.get_text_config(decoder=True)
    eos_ids = _eos_ids(model)
    return ModelInfo(
        name=sources[0].resolve().name,
        vocabulary=config.vocab_size,
        context_length=_context_length(config, options),
        eos_ids=eos_ids,
        vocabulary_fingerprint=vocabulary_fingerprint(_tokenizer(sources), eos_ids),
        weights_fingerprint=text_fingerprint(" ".join(weights_fingerprint(source) for source in sources)),
        support=getattr(config, "head_size", config.vocab_size),
    )


def _context_length(config: PreTrainedConfig, options: RuntimeOptions) -> int:
    attended = getattr(config, "max_position_embeddings", None) or options.context_length
    if attended is None:
        raise InvalidRequest(f"{config.model_type} names no longest context; set context_length", "context_length")
    return options.served(attended)


def _tokenizer(sources: Sequence[Path]) -> Tokenizer:
    """The tokenizer of the first folder that has one."""
    for source in sources:
        if (source / "tokenizer.json").is_file():
            return Tokenizer.from_file(str(source / "tokenizer.json"))
    raise InvalidRequest(f"no tokenizer.json in {' or '.join(map(str, sources))}", "model")


def _eos_ids(model: PreTrainedModel) -> tuple[int, ...]:
    """The ids that end a text: the generation config's, else the config's."""
    ids = model.generation_config.eos_token_id if model.generation_config else None
    ids = model.config.eos_token_id if ids is None else ids
    return (ids,) if isinstance(ids, int) else tuple(sorted(ids or ()))
