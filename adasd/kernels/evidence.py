"""What a target's row says of a candidate, compiled for the CPU: where q is a few ids, numpy's twenty small operations
cost more than all that they compute."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from adasd.core.types import Row
from adasd.kernels.compiled import compiled

TWICE_LN_2 = 2.0 * math.log(2.0)


def evidence(logits: Any, peak: float, mass: float, temperature: float, row: Row, token: int) -> tuple[float, float]:
    """p(token), and D_JS(p || q) as `js_divergence_on_support` has it.

    logits: of a row of which nothing is cut, in numpy, [vocabulary]; mass: the sum of its weights, 1 at the peak.
    """
    p_token, divergence = _evidence(logits, peak, mass, temperature, row.ids, row.weights, row.total, token)
    return float(p_token), float(divergence)


@compiled
def _evidence(
    logits: Any, peak: float, mass: float, temperature: float, ids: Any, weights: Any, total: int, token: int
) -> tuple[float, float]:
    p_token = inside = terms = 0.0
    for j in range(len(ids)):
        p = np.exp((logits[ids[j]] - peak) / temperature) / mass
        q = weights[j] / total
        inside += p
        if ids[j] == token:
            p_token = p
        if p + q > 0.0:
            t = (p - q) / (p + q)
            up = (1.0 + t) * np.log1p(t) if t > -1.0 else 0.0
            down = (1.0 - t) * np.log1p(-t) if t < 1.0 else 0.0
            terms += (p + q) / 2.0 * (up + down)
    outside = max(0.0, 1.0 - inside)
    return p_token, min(1.0, max(0.0, terms / TWICE_LN_2 + outside / 2.0))
