"""`adasd.core.divergence` for a block of rows."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def js_divergence_on_support(p: Tensor, q: Tensor) -> Tensor:
    """D_JS(p || q), base 2, of each row from the values at the ids that hold all of q's mass, [rows].

    p, q: float64 [rows, k]; both 0 where a row has fewer than k ids. Terms as in `adasd.core.divergence`.
    """
    total = p + q
    t = (p - q) / total.clamp(min=torch.finfo(torch.float64).tiny)
    terms = total / 2 * (torch.special.xlog1py(1 + t, t) + torch.special.xlog1py(1 - t, -t))
    outside = (1 - p.sum(-1)).clamp(min=0.0)
    divergence: Tensor = terms.sum(-1) / (2 * math.log(2)) + outside / 2
    return divergence.clamp(0.0, 1.0)
