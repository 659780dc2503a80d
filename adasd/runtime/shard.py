"""One rank's share of a model folder, cut by transformers' tensor-parallel plan of its architecture.

Matrices whose sizes do not divide are cut unevenly by transformers, the vocabulary's too; heads cannot be.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch.distributed.tensor import DTensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.distributed.configuration_utils import DistributedConfig

from adasd.core.errors import InvalidRequest
from adasd.runtime.allocator import keep_freed_memory
from adasd.runtime.base import TorchRuntime
from adasd.runtime.checkpoint import architecture, kv_positions, model_info, modules_runtime, torch_device
from adasd.runtime.group import Group
from adasd.runtime.options import Dtype, RuntimeOptions
from adasd.runtime.ranks import Ranks
from adasd.runtime.student import TrimmedLlamaConfig


def backend(options: RuntimeOptions) -> str:
    """Of the collectives of a model on this device."""
    return "nccl" if torch.device(options.device).type == "cuda" else "gloo"


def check_shares(folder: Path, options: RuntimeOptions, ranks: Ranks) -> None:
    """Refuse what cannot be cut into that many shares, before any rank waits for another. Raises InvalidRequest."""
    if architecture(folder) == TrimmedLlamaConfig.model_type:
        raise InvalidRequest(f"{folder} knows a part of the vocabulary only; it cannot be a target", "model")
    if options.dtype == "int8":
        raise InvalidRequest("a model in several ranks cannot be multiplied in int8", "dtype")
    _check_device(options.device, ranks)
    config = AutoConfig.from_pretrained(folder, local_files_only=True).get_text_config(decoder=True)
    if not config.base_model_tp_plan:
        raise InvalidRequest(f"{config.model_type} has no tensor-parallel plan", "model")
    check_heads(config, ranks.size)


def _check_device(name: str, ranks: Ranks) -> None:
    """transformers places shares on the machine's accelerator, each rank's on its own."""
    wanted, accelerator = torch_device(name), torch.accelerator.current_accelerator()
    there = "cpu" if accelerator is None else accelerator.type
    if str(wanted) != there:
        raise InvalidRequest(f"ranks on this machine share the model out on {there!r}, not on {name!r}", "device")
    if there != "cpu" and ranks.local_size > torch.accelerator.device_count():
        raise InvalidRequest(f"{ranks.local_size} ranks, {torch.accelerator.device_count()} devices", "device")


def check_heads(config: PreTrainedConfig, size: int) -> None:
    """Raises InvalidRequest if heads do not divide by the number of ranks."""
    heads = config.num_attention_heads
    key_heads = getattr(config, "num_key_value_heads", None) or heads
    if heads % size or key_heads % size:
        raise InvalidRequest(f"{heads} heads and {key_heads} key heads cannot be divided among {size} ranks", "model")


def load_shard(folder: Path, options: RuntimeOptions, group: Group) -> TorchRuntime:
    """This rank's share, with room for as much KV as the rank that has the least has."""
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
        folder,
        dtype=options.dtype or ("float32" if options.device == "cpu" else "auto"),
        distributed_config=DistributedConfig(tp_size=group.ranks.size),
        local_files_only=True,
    )
    precision: Dtype = str(model.dtype).removeprefix("torch.")  # type: ignore[assignment]
    info = model_info(model, (folder,), options, precision)
    positions = group.smallest(options.kv_positions or _positions(model, group.ranks))
    keep_freed_memory()
    count_steps(model, group.begin)
    # Not as graphs: a replay would pass by the steps by which the ranks know of one another that they go on.
    runtime = modules_runtime(model.requires_grad_(False), info, options, positions, graphs=False)
    group.loaded()
    return runtime


def count_steps(model: PreTrainedModel, begin: Callable[[], None]) -> None:
    """Call `begin` before every product of which each rank has a share: there, or next to it, they wait for others."""

    def before(*_: object) -> None:
        begin()

    for module in model.modules():
        if any(isinstance(weights, DTensor) for weights in module.parameters(recurse=False)):
            module.register_forward_pre_hook(before)


def _positions(model: PreTrainedModel, ranks: Ranks) -> int:
    """As many as half the free memory holds: of a device this rank's own, of the CPU its part of what all share."""
    sharing = ranks.local_size if model.device.type == "cpu" else 1
    return max(1, kv_positions(model, model.device) * ranks.size // sharing)
