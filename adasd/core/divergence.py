"""Jensen-Shannon divergence, base 2, in [0, 1]; its square root is the distance AdaSD works with."""

from __future__ import annotations

import math

import numpy as np

from adasd.core.types import FloatArray, Row


def _terms(p: FloatArray, q: FloatArray) -> float:
    """sum over ids of [p log2(p/m) + q log2(q/m)] / 2 with m = (p + q) / 2, from t = (p - q) / (p + q).

    m [(1 + t) ln(1 + t) + (1 - t) ln(1 - t)] / (2 ln 2) does not cancel where p and q are close.
    """
    total = p + q
    present = total > 0
    total = total[present]
    t = (p[present] - q[present]) / total
    with np.errstate(divide="ignore", invalid="ignore"):
        up = np.where(t > -1, (1 + t) * np.log1p(t), 0.0)
        down = np.where(t < 1, (1 - t) * np.log1p(-t), 0.0)
    return float((total / 2 * (up + down)).sum() / (2 * math.log(2)))


def js_divergence(p: FloatArray, q: FloatArray) -> float:
    """D_JS(p || q) of two distributions over the same ids, [k]."""
    return min(1.0, max(0.0, _terms(p, q)))


def js_divergence_sparse(p: FloatArray, row: Row) -> float:
    """D_JS(p || q) for a sparse q needs p only on its support S: what is left of p adds (1 - p(S)) / 2.

    p: [vocabulary].
    """
    return js_divergence_on_support(p[row.ids], row.weights / row.total)


def js_divergence_on_support(p: FloatArray, q: FloatArray) -> float:
    """D_JS(p || q) from the values at the k ids that hold all of q's mass, [k]; p may have mass elsewhere."""
    outside = max(0.0, 1.0 - float(p.sum()))
    return min(1.0, max(0.0, _terms(p, q) + outside / 2))


def js_distance(divergence: float) -> float:
    """sqrt(D_JS), a metric on distributions (Endres and Schindelin 2003)."""
    return math.sqrt(divergence)
