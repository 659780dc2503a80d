"""The finished student as a model folder: config, weights in half precision, model card."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import save_file

from adasd.runtime.student import HEAD_IDS, WEIGHTS, TrimmedLlamaForCausalLM


def write_student(student: TrimmedLlamaForCausalLM, folder: Path, base_model: str, card: str) -> None:
    """Write what is the student's own: layers, norm, the ids its head knows. The rest is the target's, unchanged.

    base_model: the target's name, for people. `adasd.runtime.student.load_student` reads the folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    own = {name: tensor.detach().half().contiguous().cpu() for name, tensor in _learned(student).items()}
    save_file(
        own | {HEAD_IDS: student.lm_head.vocab_ids.to("cpu", torch.int32)}, folder / WEIGHTS, metadata={"format": "pt"}
    )
    config = student.config.__class__(**student.config.to_diff_dict() | {"base_model": base_model})
    config.dtype = torch.float16
    config.architectures = [type(student).__name__]
    config.save_pretrained(folder)
    (folder / "README.md").write_text(card, encoding="utf-8")


def _learned(student: TrimmedLlamaForCausalLM) -> dict[str, torch.Tensor]:
    return {name: tensor for name, tensor in student.named_parameters() if tensor.requires_grad}
