"""Linear layers with weights laid out for the CPU's matrix kernels: about twice as fast at 64 to 128 rows, and twice
again in bfloat16 where the processor multiplies it."""

from __future__ import annotations

import torch
from torch import nn

from adasd.core.errors import InvalidRequest

ROWS_HINT = 128
PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class PackedLinear(nn.Module):
    """`nn.Linear` for inference on the CPU, weights reordered once by oneDNN. input: float32 [..., in_features].

    dtype: of weights and products; sums, input and output stay float32.
    """

    def __init__(self, linear: nn.Linear, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.out_features, self.in_features = linear.weight.shape
        self._weight = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach().to(dtype), ROWS_HINT)
        self._bias = None if linear.bias is None else linear.bias.detach().to(dtype)
        self._dtype = dtype

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        rows = hidden.to(self._dtype)
        out: torch.Tensor = torch.ops.mkldnn._linear_pointwise(rows, self._weight, self._bias, "none", [], "")
        return out.to(hidden.dtype)


def pack_linears(module: nn.Module, dtype: torch.dtype = torch.float32) -> int:
    """Replace every float32 CPU linear layer below `module` by its packed form; how many were replaced.

    The originals go, so the module can no longer be trained or saved. Other types and devices stay as they are.
    """
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
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
    if name != "float32" and (device != "cpu" or not torch.ops.mkldnn._is_mkldnn_bf16_supported()):
        raise InvalidRequest(f"{name} is for a CPU that multiplies it; use float32 here", "precision")
    return PRECISIONS[name]
