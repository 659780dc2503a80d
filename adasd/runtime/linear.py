"""Matrix products on the CPU at the speed of its memory: a pass over a block then costs what a pass over a token does.

torch's default linear takes 3 times as long for 4 rows as for one. Loops of our own cost about the same from 1 to 8
rows, and in 8 bits less; so do weights in bfloat16 that oneDNN has laid out once for few rows, where it can.
"""

from __future__ import annotations

from typing import Literal, Protocol

import torch
from torch import Tensor

from adasd.kernels.products import Matrix

Precision = Literal["float32", "bfloat16", "int8"]

ROWS_HINT = 16
"""What the layout is made for; best from 1 to 32 rows (measured), where a hint of 1 is slow from 2 rows on."""


INPUTS = 1024
"""Longer sums oneDNN splits according to the number of rows. Split here instead, a row's result is the same to the last
bit whatever other rows are in the batch."""


class Product(Protocol):
    """x -> x W^T + b. x: [rows, in]; [rows, out], in x's type."""

    def __call__(self, x: Tensor) -> Tensor: ...


def product(weight: Tensor, bias: Tensor | None, precision: Precision) -> Product:
    """The fastest product there is for this weight, [out, in] in float32; bfloat16 only where it `can_pack`."""
    if precision != "bfloat16":
        return looped(weight, bias, precision)
    packed = Packed if weight.shape[1] <= INPUTS else Summed
    return packed(weight, bias, torch.bfloat16)


def can_pack(precision: Literal["float32", "bfloat16"]) -> bool:
    """Whether oneDNN has the kernels for this processor."""
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    return precision == "float32" or bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


class Packed:
    """Weights laid out by oneDNN. dtype: of weights and products; sums are float32."""

    def __init__(self, weight: Tensor, bias: Tensor | None, dtype: torch.dtype, rows: int = ROWS_HINT) -> None:
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight.detach().to(dtype).contiguous(), rows)
        self._bias = None if bias is None else bias.detach().to(dtype)
        self._dtype = dtype

    def __call__(self, x: Tensor) -> Tensor:
        out: Tensor = torch.ops.mkldnn._linear_pointwise(x.to(self._dtype), self._weight, self._bias, "none", [], "")
        return out.to(x.dtype)


class Summed:
    """`Packed` over blocks of at most INPUTS inputs, added up in order."""

    def __init__(self, weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> None:
        first, *others = torch.split(weight, -(-weight.shape[1] // -(-weight.shape[1] // INPUTS)), dim=1)
        self._parts = [Packed(first, bias, dtype), *(Packed(block, None, dtype) for block in others)]
        self._sizes = [first.shape[1], *(block.shape[1] for block in others)]

    def __call__(self, x: Tensor) -> Tensor:
        first, *others = (
            part(block) for part, block in zip(self._parts, torch.split(x, self._sizes, dim=-1), strict=True)
        )
        for out in others:
            first += out
        return first


def looped(weight: Tensor, bias: Tensor | None, precision: Precision) -> Matrix:
    """Our own loops. In 8 bits each output's weights have a scale of their own, and the inputs stay what they are."""
    weight, scale = weight.detach(), None
    if precision == "int8":
        scale = (weight.abs().amax(1) / 127).clamp_min(1e-12)
        weight = torch.round(weight / scale[:, None]).to(torch.int8)
    return Matrix(weight, scale, None if bias is None else bias.clone())
