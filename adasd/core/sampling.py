"""From logits to the warped distribution: temperature, then top_k, top_p, min_p, as transformers applies them."""

from __future__ import annotations

import numpy as np

from adasd.core.errors import NumericalFault
from adasd.core.types import FloatArray, SamplingParams


def check_logits(logits: FloatArray, side: str) -> None:
    """Refuse NaN, and rows without a finite maximum. -inf bans an id; +inf forces it. logits: [..., vocabulary]."""
    if np.isnan(logits).any():
        raise NumericalFault(f"the {side} model gave NaN logits", side)
    if np.isneginf(logits.max(axis=-1)).any():
        raise NumericalFault(f"the {side} model gave a row without a finite logit", side)


def softmax(logits: FloatArray) -> FloatArray:
    """float64 softmax over the last axis; ids at +inf share all mass. logits: [..., vocabulary], no NaN."""
    peak = logits.max(axis=-1, keepdims=True)
    with np.errstate(invalid="ignore"):
        shifted = np.where(logits == peak, 0.0, logits - peak)
    weights = np.exp(shifted)
    normalised: FloatArray = weights / weights.sum(axis=-1, keepdims=True)
    return normalised


def warp(logits: FloatArray, sampling: SamplingParams) -> FloatArray:
    """The distribution that is sampled from, float64 [vocabulary]; at temperature 0 all mass on the (lowest) arg max.

    logits: [vocabulary], checked. Ties at the k-th value are kept, as transformers does.
    """
    logits = logits.astype(np.float64)
    if sampling.greedy:
        return np.eye(1, len(logits), int(np.argmax(logits)))[0]
    probabilities = softmax(logits / sampling.temperature)
    if 0 < sampling.top_k < len(logits):
        kth = np.partition(logits, -sampling.top_k)[-sampling.top_k]
        probabilities = _kept(probabilities, logits >= kth)
    if sampling.top_p < 1.0:
        probabilities = _kept(probabilities, _nucleus(probabilities, sampling.top_p))
    if sampling.min_p > 0.0:
        probabilities = _kept(probabilities, probabilities >= sampling.min_p * probabilities.max())
    return probabilities


def _nucleus(probabilities: FloatArray, top_p: float) -> np.typing.NDArray[np.bool_]:
    """The smallest set of most likely ids whose mass reaches top_p; among equals the higher id goes first."""
    order = np.argsort(probabilities, kind="stable")
    dropped = np.cumsum(probabilities[order]) <= 1.0 - top_p
    dropped[-1] = False
    kept = np.empty(len(order), dtype=np.bool_)
    kept[order] = ~dropped
    return kept


def _kept(probabilities: FloatArray, mask: np.typing.NDArray[np.bool_]) -> FloatArray:
    kept = np.where(mask, probabilities, 0.0)
    normalised: FloatArray = kept / kept.sum()
    return normalised


def entropy_bits(probabilities: FloatArray) -> float:
    """Shannon entropy in bits; probability 0 contributes 0. probabilities: [vocabulary]."""
    positive = probabilities[probabilities > 0]
    return float(max(0.0, -(positive * np.log2(positive)).sum()))
