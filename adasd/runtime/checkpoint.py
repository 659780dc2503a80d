"""Model folders of transformers: weights, tokenizer and generation config to a runtime."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from adasd.core.errors import InvalidRequest
from adasd.core.messages import ModelInfo
from adasd.runtime.allocator import keep_freed_memory
from adasd.runtime.base import TorchRuntime
from adasd.runtime.decoder import Decoder, suits
from adasd.runtime.fingerprint import text_fingerprint, vocabulary_fingerprint, weights_fingerprint
from adasd.runtime.kv import bytes_per_position
from adasd.runtime.linear import Precision, can_pack
from adasd.runtime.modules import ModuleBody
from adasd.runtime.options import Dtype, Role, RuntimeOptions
from adasd.runtime.ragged import Body, RaggedRuntime
from adasd.runtime.slots import SlotPool, room
from adasd.runtime.slotted import SlottedRuntime
from adasd.runtime.static import SHORT, CudaGraphs, StaticBody
from adasd.runtime.student import TrimmedLlamaConfig, is_complete, load_student

MOST_SLOTS = 64
"""Sessions with KV at a time, where memory holds more: of a pass's shapes there are few."""
ENOUGH_SLOTS = 8
"""With fewer, passes are static only where that was asked for."""

logger = logging.getLogger(__name__)


def load_checkpoint(folder: Path, role: Role, options: RuntimeOptions) -> TorchRuntime:
    """The model in `folder`, on its device; a student is known by its config. Nothing is looked up on the network.

    Models of the Llama family on the CPU run as a `Decoder`, unless passes are to be static, all others as
    transformers' modules.

    Raises InvalidRequest for a folder, a device or an architecture that cannot be served, with the reason.
    """
    device = torch_device(options.device)
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    if architecture(folder) == TrimmedLlamaConfig.model_type:
        model, sources = _student(folder, role, options)
    else:
        model, sources = _model(folder, device, options), (folder,)
    precision = _precision(model, role, device, options)
    info = model_info(model, sources, options, precision)
    model.requires_grad_(False)
    if precision != "float16" and _written_out(model, device, precision, options):
        body: Body = Decoder(model, info.context_length, precision)
        keep_freed_memory()
        return RaggedRuntime(body, info, options.kv_positions or kv_positions(model, device))
    placed: Any = model.to(getattr(torch, precision))
    keep_freed_memory()
    return modules_runtime(placed.to(device), info, options)


def _precision(model: PreTrainedModel, role: Role, device: torch.device, options: RuntimeOptions) -> Dtype:
    """The type of weights and products. Raises InvalidRequest for one that cannot be had here.

    A draft's candidates are judged by the rows they were drawn from, whatever its weights: 8 bits cost no exactness.
    """
    in_bytes = _written_out(model, device, "int8", options)
    if options.dtype is None and role == "draft" and in_bytes:
        return "int8"
    if options.dtype is None:
        return cast(Dtype, str(model.dtype).removeprefix("torch."))
    if options.dtype == "int8" and not in_bytes:
        passes = "static passes of " if options.static_passes else ""
        raise InvalidRequest(f"{passes}{model.config.model_type} cannot be multiplied in int8 on {device}", "dtype")
    return options.dtype


def _written_out(model: PreTrainedModel, device: torch.device, precision: Precision, options: RuntimeOptions) -> bool:
    """Whether a `Decoder` serves this model."""
    multiplied = precision != "bfloat16" or can_pack(precision)
    return device.type == "cpu" and not options.static_passes and suits(model) and multiplied


def modules_runtime(
    model: PreTrainedModel, info: ModelInfo, options: RuntimeOptions, positions: int | None = None, graphs: bool = True
) -> TorchRuntime:
    """A model as transformers has it, where it is. positions: of KV, else as the options say or the memory holds.

    graphs: whether static passes on CUDA may be recorded. Raises InvalidRequest if not one session has room.
    """
    positions = positions or options.kv_positions or kv_positions(model, model.device)
    slots, length = room(positions, info.context_length, SHORT)
    if not _takes_slots(options, slots):
        return RaggedRuntime(ModuleBody(model), info, positions)
    if slots < 1:
        raise InvalidRequest(
            f"{positions} positions of KV hold no session of {length}, as static passes need it; set a shorter one",
            "context_length",
        )
    pool = SlotPool(model.config.get_text_config(decoder=True).num_hidden_layers, min(slots, MOST_SLOTS), length)
    record = CudaGraphs() if graphs and model.device.type == "cuda" else None
    return SlottedRuntime(StaticBody(model, pool, record, options.compiled), pool, info)


def _takes_slots(options: RuntimeOptions, slots: int) -> bool:
    """Whether passes are static: where that was asked for, or is the default and enough sessions have room."""
    default = options.passes is None and not options.compiled
    if options.static_passes and default and slots < ENOUGH_SLOTS:
        logger.info("memory holds %d sessions as long as the context, so passes are not static", slots)
        return False
    return options.static_passes


def kv_positions(model: PreTrainedModel, device: torch.device) -> int:
    """How many positions of KV half the free memory of the device holds."""
    config = model.config.get_text_config(decoder=True)
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    position = bytes_per_position(config.num_hidden_layers, heads, width, model.dtype)
    return max(1, free_memory(device) // 2 // position)


def free_memory(device: torch.device) -> int:
    """Bytes."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")


def architecture(folder: Path) -> str:
    """Of the model in a folder. Raises InvalidRequest if there is none."""
    config = folder / "config.json"
    if not config.is_file():
        raise InvalidRequest(f"no model in {folder}: it has no config.json", "model")
    return str(json.loads(config.read_text(encoding="utf-8")).get("model_type"))


def torch_device(name: str) -> torch.device:
    """Raises InvalidRequest for one that is unknown or not there."""
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise InvalidRequest(f"unknown device {name!r}: {error}", "device") from None
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise InvalidRequest(f"device {name!r} is not available", "device")
    return device


def _model(folder: Path, device: torch.device, options: RuntimeOptions) -> PreTrainedModel:
    """On the CPU in float32, to be packed or converted; elsewhere in the type wanted, by default the folder's own."""
    dtype = torch.float32 if device.type == "cpu" else options.dtype or "auto"
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, local_files_only=True)
    return model


def _student(folder: Path, role: Role, options: RuntimeOptions) -> tuple[PreTrainedModel, tuple[Path, ...]]:
    """The student, and the folders it is made of."""
    if role == "target":
        raise InvalidRequest(f"{folder} knows a part of the vocabulary only; it cannot be a target", "model")
    target = None if is_complete(folder) else options.target
    student = load_student(folder, target)
    return student, (folder,) if target is None else (folder, target)


def model_info(model: PreTrainedModel, sources: Sequence[Path], options: RuntimeOptions, precision: Dtype) -> ModelInfo:
    """What identifies a model that is made of some folders and multiplied in some type."""
    config = model.config.get_text_config(decoder=True)
    eos_ids = _eos_ids(model)
    return ModelInfo(
        name=sources[0].resolve().name,
        vocabulary=config.vocab_size,
        context_length=_context_length(config, options),
        eos_ids=eos_ids,
        vocabulary_fingerprint=vocabulary_fingerprint(tokenizer_of(sources), eos_ids),
        weights_fingerprint=text_fingerprint(" ".join([precision, *map(weights_fingerprint, sources)])),
        support=getattr(config, "head_size", config.vocab_size),
    )


def _context_length(config: PreTrainedConfig, options: RuntimeOptions) -> int:
    attended = getattr(config, "max_position_embeddings", None) or options.context_length
    if attended is None:
        raise InvalidRequest(f"{config.model_type} names no longest context; set context_length", "context_length")
    return options.served(attended)


def tokenizer_of(sources: Sequence[Path]) -> Tokenizer:
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
