"""Exponentials in float32, of which softmaxes and gates are made."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from adasd.kernels.compiled import compiled


@compiled
def exponentials(scores: NDArray[np.float32], powers: NDArray[np.int32], peak: np.float32) -> np.float32:
    """exp(score - peak) in place, to 2e-7 of it; their sum, NaN where a score is no number. powers: room for as many.

    2^t = 2^floor(t) times a polynomial of the fraction (least squares, 2e-9): arithmetic that compiles to vectors.
    """
    total = np.float32(0.0)
    for j in range(len(scores)):
        total += scores[j] * np.float32(0.0)
        exponent = max((scores[j] - peak) * np.float32(1.4426950408889634), np.float32(-126.0))
        whole = np.floor(exponent)
        rest = exponent - whole
        power = np.float32(2.16138082e-4) * rest + np.float32(1.24673764e-3)
        power = power * rest + np.float32(9.67553263e-3)
        power = power * rest + np.float32(5.54852202e-2)
        power = power * rest + np.float32(2.40229325e-1)
        power = power * rest + np.float32(6.93147042e-1)
        powers[j] = (np.int32(whole) + np.int32(127)) << np.int32(23)
        scores[j] = power * rest + np.float32(1.0)
    factors = powers[: len(scores)].view(np.float32)
    for j in range(len(scores)):
        scores[j] *= factors[j]
        total += scores[j]
    return total
