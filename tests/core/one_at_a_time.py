"""Logits processed one position at a time, in plain words: the oracle of everything that processes blocks."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from adasd.core.types import FloatArray, Processing


def processed(
    logits: FloatArray, processing: Processing, prompt: Sequence[int], generated: Sequence[int]
) -> FloatArray:
    """The logits of the token that follows `generated`, [vocabulary]."""
    found = logits.astype(np.float64)
    for token, bias in processing.logit_bias:
        found[token] += bias
    for token in {*prompt, *generated}:
        penalty = processing.repetition_penalty
        found[token] = found[token] / penalty if found[token] > 0 else found[token] * penalty
    for token in set(generated):
        found[token] -= processing.frequency_penalty * generated.count(token) + processing.presence_penalty
    if len(generated) < processing.min_tokens:
        found[list(processing.eos_ids)] = -math.inf
    return found
