"""From logits to the warped distribution: temperature, then top_k, top_p, min_p, as transformers applies them."""

from __future__ import annotations

import numpy as np

from adasd.core.errors import NumericalFault
from adasd.core.types import FloatArray, IntArray, SamplingParams

ROUNDING = 1e-9
"""A mass this close to a cut counts as having reached it, so that no device's rounding decides which ids are kept."""


def check_logits(logits: FloatArray, side: str) -> None:
    """Refuse NaN, and rows that are -inf throughout. -inf bans an id; +inf forces it. logits: [..., vocabulary]."""
    if fault := fault_of(logits.max(axis=-1), side):
        raise fault


def fault_of(peaks: FloatArray, side: str) -> NumericalFault | None:
    """What is wrong with rows of these largest logits, each NaN where its row holds one. peaks: [...]."""
    if np.isfinite(peaks).all():
        return None
    if np.isnan(peaks).any():
        return NumericalFault(f"the {side} model gave NaN logits", side)
    if np.isneginf(peaks).any():
        return NumericalFault(f"the {side} model gave a row without a finite logit", side)
    return None


def softmax(logits: FloatArray, temperature: float = 1.0) -> FloatArray:
    """Softmax of logits / temperature over the last axis; ids at +inf share all mass.

    logits: float64 [..., vocabulary], no NaN. The peak is subtracted first: a tiny temperature may then push the others
    down to -inf, but makes no two logits equal.
    """
    peak = logits.max(axis=-1, keepdims=True)
    with np.errstate(invalid="ignore", over="ignore"):
        scaled = np.where(logits == peak, 0.0, (logits - peak) / temperature)
    weights = np.exp(scaled)
    normalised: FloatArray = weights / weights.sum(axis=-1, keepdims=True)
    return normalised


def warp(logits: FloatArray, sampling: SamplingParams) -> FloatArray:
    """The distribution that is sampled from, float64 [vocabulary]; at temperature 0 all mass on the (lowest) arg max.

    logits: [vocabulary], checked. Ties at the k-th value are kept, as transformers does.
    """
    logits = logits.astype(np.float64)
    if sampling.greedy:
        return _point(int(np.argmax(logits)), len(logits))
    if 0 < sampling.top_k < len(logits):
        kth = np.partition(logits, -sampling.top_k)[-sampling.top_k]
        logits = np.where(logits >= kth, logits, -np.inf)
    probabilities = softmax(logits, sampling.temperature)
    if sampling.top_p < 1.0:
        probabilities = _kept(probabilities, _nucleus(logits, probabilities, sampling.top_p))
    if sampling.min_p > 0.0:
        least = sampling.min_p * (1.0 - ROUNDING) * probabilities.max()
        probabilities = _kept(probabilities, probabilities >= least)
    return probabilities


def _point(token: int, vocabulary: int) -> FloatArray:
    probabilities = np.zeros(vocabulary, dtype=np.float64)
    probabilities[token] = 1.0
    return probabilities


def by_likelihood(logits: FloatArray) -> IntArray:
    """Ids from the most to the least likely; among equals the higher id goes first, as in transformers. logits: [k]."""
    return np.argsort(logits, kind="stable")[::-1]


def _nucleus(logits: FloatArray, probabilities: FloatArray, top_p: float) -> np.typing.NDArray[np.bool_]:
    """The smallest set of most likely ids whose mass reaches top_p."""
    order = by_likelihood(logits)
    ahead = np.cumsum(probabilities[order]) - probabilities[order]
    kept = np.empty(len(order), dtype=np.bool_)
    kept[order] = ahead < top_p - ROUNDING
    kept[order[0]] = True
    return kept


def _kept(probabilities: FloatArray, mask: np.typing.NDArray[np.bool_]) -> FloatArray:
    kept = np.where(mask, probabilities, 0.0)
    normalised: FloatArray = kept / kept.sum()
    return normalised


def entropy_bits(probabilities: FloatArray) -> float:
    """Shannon entropy in bits; probability 0 contributes 0. probabilities: [vocabulary]."""
    positive = probabilities[probabilities > 0]
    return float(max(0.0, -(positive * np.log2(positive)).sum()))
