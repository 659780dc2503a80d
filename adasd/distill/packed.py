"""Linear layers with weights laid out for the CPU's matrix kernels: about twice as fast at 64 to 128 rows, and twice
again in bfloat16 where the processor multiplies it."""

from __future__ import annotations

import torch
from torch import nn

from adasd.core.errors import InvalidRequest
from adasd.runtime.linear import Packed, can_pack

ROWS_HINT = 128
PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class PackedLinear(nn.Module):
    """`nn.Linear` for inference on the CPU, weights reordered once by oneDNN. input: float32 [..., in_features].

    dtype: of weights and products; sums, input and output stay float32.
    """

    def __init__(self, linear: nn.Linear, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.out_features, self.in_features = linear.weight.shape
        self._product = Packed(linear.weight, linear.bias, dtype, ROWS_HINT)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return self._product(hidden)


def pack_linears(module: nn.Module, dtype: torch.dtype = torch.float32) -> int:
    """Replace every float32 CPU linear layer below `module` by its packed form; how many were replaced.

    The originals go, so the module can no longer be trained or saved. Other types and devices stay as they are.
    """
    if not can_pack("float32"):
        return 0
    replaced = 0
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear and child.weight.dtype is torch.float32 and child.weight.device.type == "cpu":
                setattr(parent, name, PackedLinear(child, dtype))
                replaced += 1
    return replaced


def check_precision(name: str, device: str) -> torch.dtype:
    """The type of that name. Raises InvalidRequest if it is unknown, or cannot be had on this machine."""
    if name not in PRECISIONS:
        raise InvalidRequest(f"unknown precision {name!r}; known: {', '.join(PRECISIONS)}", "precision")
    if name == "bfloat16" and not (device == "cpu" and can_pack("bfloat16")):
        raise InvalidRequest(f"{name} is for a CPU that multiplies it; use float32 here", "precision")
    return PRECISIONS[name]
