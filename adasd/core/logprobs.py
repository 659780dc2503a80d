"""Log-probabilities that clients may ask for: of the raw logits at temperature 1, whatever is sampled from."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from adasd.core.types import FloatArray, IntArray
from adasd.core.verdicts import TokenLogprobs

LEAST_LOGPROB = -9999.0
"""Stands for the logarithm of 0, as clients know it."""


def log_softmax(logits: FloatArray) -> FloatArray:
    """Natural logarithms of the softmax over the last axis, float64; ids at +inf share all mass. logits: no NaN."""
    logits = logits.astype(np.float64)
    peak = logits.max(axis=-1, keepdims=True)
    with np.errstate(invalid="ignore"):
        relative = np.where(logits == peak, 0.0, logits - peak)
    logs: FloatArray = relative - np.log(np.exp(relative).sum(axis=-1, keepdims=True))
    return logs


def token_logprobs(logits: FloatArray, tokens: Sequence[int], top: int) -> list[TokenLogprobs]:
    """Of one token a row, and of each row's `top` likeliest ids. logits: [n, vocabulary], n at least len(tokens)."""
    return [_of_row(row, token, top) for row, token in zip(log_softmax(logits), tokens, strict=False)]


def _of_row(logs: FloatArray, token: int, top: int) -> TokenLogprobs:
    if top == 0:
        return ranked(float(logs[token]), np.empty(0, dtype=np.int64), np.empty(0), 0)
    kth = np.partition(logs, -min(top, len(logs)))[-min(top, len(logs))]
    ids = np.flatnonzero(logs >= kth)
    return ranked(float(logs[token]), ids, logs[ids], top)


def ranked(logprob: float, ids: IntArray, logs: FloatArray, top: int) -> TokenLogprobs:
    """The entry of one token. ids, logs: the `top` likeliest and all that tie with the last, in any order, [k].

    Ids of probability 0 are no alternatives and left out.
    """
    order = np.lexsort((ids, -logs))[:top]
    order = order[logs[order] > -np.inf]
    return TokenLogprobs(max(logprob, LEAST_LOGPROB), tuple(ids[order].tolist()), tuple(logs[order].tolist()))
