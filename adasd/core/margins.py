"""How close a decision was: what logits that differ a little would have had to be off by to change it."""

from __future__ import annotations

import numpy as np

from adasd.core.adaptive import packed_posterior
from adasd.core.draws import CounterDraws, DrawKey, Purpose
from adasd.core.host import HostTarget
from adasd.core.messages import VerifyRequest
from adasd.core.rows import probabilities
from adasd.core.types import FloatArray
from adasd.core.verdicts import Verdict
from adasd.core.verification import verification


def margin(request: VerifyRequest, target: HostTarget, left: Verdict, right: Verdict) -> tuple[str, float] | None:
    """What decided that two verdicts on one request differ, and how closely; None if they do not.

    Greedy: the distance of the two largest logits. Shared noise: that of the two best scores. Otherwise the distance of
    the uniform to where it would have decided otherwise. target: rows of the request's block, as `left` was judged by.
    """
    offset = _first_difference(left, right)
    if offset is None:
        return None
    sampling, base = request.sampling, request.context.base
    draws = CounterDraws(sampling.seed, sampling.choice)
    if sampling.greedy:
        return "logits", gap(target.logits[offset])
    if verification(request.acceptance).coupled:
        return "scores", gap(_scores(target.p[offset], base + offset, draws))
    if left.accepted != right.accepted:
        return "acceptance", _of_acceptance(request, target, offset, draws)
    return "emission", _of_emission(request, target.p[offset], right, draws)


def gap(values: FloatArray) -> float:
    """The largest minus the second largest. values: [n], n > 1."""
    second, first = np.partition(values, -2)[-2:]
    return float(first - second)


def _first_difference(left: Verdict, right: Verdict) -> int | None:
    """Where in the block."""
    if left.accepted != right.accepted:
        return min(left.accepted, right.accepted)
    return None if left.tokens == right.tokens else left.accepted


def _scores(p: FloatArray, position: int, draws: CounterDraws) -> FloatArray:
    ids = np.flatnonzero(p)
    noisy: FloatArray = np.log(p[ids]) + draws.gumbel(position, ids)
    return np.append(noisy, -np.inf)


def _of_acceptance(request: VerifyRequest, target: HostTarget, offset: int, draws: CounterDraws) -> float:
    """To the boundary of the exact test, or to P(A | d) of a rule that learns it."""
    evidence = target.evidence(request.draft)[offset]
    learned = packed_posterior(request.state).accepted(evidence.distance)
    boundaries = [min(1.0, evidence.p / evidence.q), *([] if learned is None else [learned])]
    uniform = draws.uniform(DrawKey(request.context.base, offset, Purpose.ACCEPT))
    return min(abs(boundary - uniform) for boundary in boundaries)


def _of_emission(request: VerifyRequest, p: FloatArray, right: Verdict, draws: CounterDraws) -> float:
    """To the other token's part of the cumulative weights."""
    offset, token = right.accepted, right.tokens[-1]
    if right.emission == "recovered":
        residual = np.maximum(p - probabilities(request.draft.rows[offset], len(p)), 0.0)
        p = residual if residual.any() else p
    cumulative = np.cumsum(p) / p.sum()
    uniform = draws.uniform(DrawKey(request.context.base, offset, Purpose.EMIT))
    return float(max(cumulative[token] - p[token] / p.sum() - uniform, uniform - cumulative[token], 0.0))
