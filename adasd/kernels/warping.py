"""`adasd.core.sampling` for a block of rows: what is kept is described by a threshold, so no row is ever rewritten.

Ids are kept in order of likelihood (logit descending; among equals the higher id first), hence the kept ids of a row
are those down to one pair (value, id). With the peak and the kept mass, any probability is read off the logits
themselves. A weight is exp((logit - peak) / temperature), float64: 1 at the peak.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from adasd.core.sampling import ROUNDING
from adasd.core.types import FloatArray, Row, SamplingParams
from adasd.kernels import drawing, loops
from adasd.kernels.draws import inverse_cdf
from adasd.kernels.loops import NEGLIGIBLE
from adasd.kernels.rows import scattered
from adasd.kernels.selection import likeliest

STEP, STEPS = 1 / 128, 4096
"""A histogram of log weights: nats a bin, and bins; the last one also holds all that is less likely."""


class Search(NamedTuple):
    """One way to look for a cut: rank the `width` likeliest ids (None: all), or those past a `window`."""

    width: int | None
    window: bool = False


SEARCHES = (Search(256), Search(512, window=True), Search(None))
"""Tried in turn. Few rows get past the first unless the temperature is high, none past the second but for equals."""


class Cut(NamedTuple):
    """Where the kept ids of each row end. Every field is [rows, 1].

    value, first_id: ids above `value` are kept, and those at `value` from `first_id` on (value in the logits' dtype).
    mass: float64, sum of the kept weights. found: False where the search was too narrow; the rest means nothing there.
    """

    value: Tensor
    first_id: Tensor
    mass: Tensor
    found: Tensor


def log_weights(logits: Tensor, peak: Tensor, temperature: float) -> Tensor:
    """(logits - peak) / temperature, float64. logits: [rows, k]. peak: [rows, 1]."""
    return logits.to(torch.float64, copy=True).sub_(peak).div_(temperature)


def total(terms: Tensor) -> Tensor:
    """Sum along the vocabulary, [rows, 1], with the same bits whatever the number of rows. terms: [rows, k].

    On the CPU torch splits a sum among its threads, and so rounds it differently, only if it is the only one.
    """
    several = terms if len(terms) > 1 else terms.expand(2, -1)
    return several.sum(-1, keepdim=True)[: len(terms)]


def mass_and_entropy(logits: Tensor, peak: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Sum of all weights, and the entropy in bits of the distribution they make; both float64 [rows, 1]."""
    mass, weighted = _sums(logits, peak, temperature)
    return mass, ((mass.log() - weighted / mass) / math.log(2)).clamp(min=0.0)


def _sums(logits: Tensor, peak: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """`loops.sums`, wherever the logits are."""
    if loops.take(logits):
        return loops.sums(logits, peak, temperature)
    logs = log_weights(logits, peak, temperature).clamp_(min=NEGLIGIBLE)  # beyond it `exp` may take a slow path
    weights = logs.exp()
    return total(weights), total(weights.mul_(logs))


def forced(logits: Tensor) -> Tensor:
    """The same distributions without +inf: in a row that has some, those become 0 and everything else -inf."""
    endless = torch.isposinf(logits)
    shared = torch.zeros_like(logits).masked_fill(~endless, -math.inf)
    return torch.where(endless.any(-1, keepdim=True), shared, logits)


def uncuts(sampling: SamplingParams, vocabulary: int) -> bool:
    """Whether sampling keeps every id."""
    return not 0 < sampling.top_k < vocabulary and sampling.top_p == 1.0 and sampling.min_p == 0.0


def uncut(logits: Tensor, mass: Tensor) -> Cut:
    """Every id is kept; `mass` is that of all, [rows, 1]."""
    value = torch.full_like(mass, -math.inf, dtype=logits.dtype)
    first_id = torch.zeros_like(mass, dtype=torch.int64)
    return Cut(value, first_id, mass, torch.ones_like(mass, dtype=torch.bool))


def top_k(logits: Tensor, peak: Tensor, sampling: SamplingParams) -> Cut:
    """The k likeliest ids and all that tie with the last of them."""
    values = likeliest(logits, sampling.top_k)[0]
    kth = values[:, -1:]
    unlisted = (logits == kth).sum(-1, keepdim=True) - (values == kth).sum(-1, keepdim=True)
    weights = log_weights(values, peak, sampling.temperature).exp_()
    mass = total(weights) + unlisted * weights[:, -1:]
    return uncut(logits, mass)._replace(value=kth)


def kept_count(
    values: Tensor, weights: Tensor, cut: Cut, sampling: SamplingParams, before: Tensor | float = 0.0
) -> Tensor:
    """How many of the likeliest ids stay after `cut`, then top_p, then min_p, [rows, 1].

    At least one, none of weight 0. values, weights: [rows, k], descending. before: mass of what comes before them.
    """
    ahead = before + weights.cumsum(-1) - weights
    enough = sampling.top_p - ROUNDING if sampling.top_p < 1.0 else math.inf
    least = sampling.min_p * (1.0 - ROUNDING)
    kept = (values >= cut.value) & (ahead < enough * cut.mass) & (weights >= least) & (weights > 0)
    return kept.sum(-1, keepdim=True).clamp(min=1)


class Window(NamedTuple):
    """Ids from `value` down, [rows, 1]; `mass`, float64 [rows, 1], lies above it. The first of them is kept."""

    value: Tensor
    mass: Tensor


def window(logits: Tensor, peak: Tensor, cut: Cut, sampling: SamplingParams) -> Window:
    """Just above where top_p, then min_p, cut: the last bin of a histogram that is kept as a whole ends there.

    logits: [rows, vocabulary], with finite peaks.
    """
    logs = log_weights(logits, peak, sampling.temperature)
    weights = logs.clamp(min=NEGLIGIBLE).exp_().mul_(logits >= cut.value)
    bins = logs.div_(-STEP).clamp_(max=STEPS - 1).to(torch.int64)
    masses = torch.zeros((len(logits), STEPS), dtype=torch.float64, device=logits.device).scatter_add_(1, bins, weights)
    enough = sampling.top_p - 2 * ROUNDING if sampling.top_p < 1.0 else math.inf
    likely = math.floor(-math.log(sampling.min_p) / STEP) if sampling.min_p > 0.0 else STEPS
    whole = (masses.cumsum(-1) < enough * cut.mass).sum(-1, keepdim=True).clamp(max=min(likely, STEPS - 1))
    above = torch.where((bins < whole) & (logits >= cut.value), logits, math.inf).amin(-1, keepdim=True)
    value = torch.minimum(above, peak.to(logits.dtype))
    return Window(value, total(weights.mul_(logits > value)))


def narrowed(logits: Tensor, peak: Tensor, cut: Cut, sampling: SamplingParams, search: Search) -> Cut:
    """top_p, then min_p, after `cut`, if `search` finds where."""
    start = window(logits, peak, cut, sampling) if search.window else None
    within = logits if start is None else logits.masked_fill(logits > start.value, -math.inf)
    before = 0.0 if start is None else start.mass
    values, ids = likeliest(within, search.width or logits.shape[-1])
    weights = log_weights(values, peak, sampling.temperature).exp_()
    count = kept_count(values, weights, cut, sampling, before)
    mass = before + weights.cumsum(-1).gather(-1, count - 1)
    last = values.gather(-1, count - 1)
    above = (values > last).sum(-1, keepdim=True)
    tied = torch.where(values == last, ids, -1).sort(dim=-1, descending=True).values
    first_id = tied.gather(-1, count - above - 1)
    found = last > values[:, -1:]  # among ids that tie with the end of the list `likeliest` lists any
    return Cut(last, first_id, mass, found | (search.width is None))


@dataclass(frozen=True, slots=True)
class Warped:
    """The warped distributions of a block of rows.

    logits: [rows, vocabulary], without +inf. peak: float64 [rows, 1]. whole: nothing is cut from any row.
    """

    logits: Tensor
    temperature: float
    peak: Tensor
    cut: Cut
    whole: bool

    def rows(self, which: slice) -> Warped:
        """The same for some of the rows."""
        cut = Cut(*(field[which] for field in self.cut))
        return Warped(self.logits[which], self.temperature, self.peak[which], cut, self.whole)

    def recut(self, rows: Tensor, cut: Cut) -> Warped:
        """The same with another cut for some of the rows. rows: int64 [m], of `cut`'s m rows."""
        pairs = zip(self.cut, cut, strict=True)
        return replace(self, cut=Cut(*(old.index_copy(0, rows, new) for old, new in pairs)))

    def at(self, ids: Tensor) -> Tensor:
        """Probability of some ids of each row, float64 [rows, k]. ids: int64 [rows, k]."""
        return self._probabilities(self.logits.gather(-1, ids), ids)

    def dense(self) -> Tensor:
        """All probabilities, float64 [rows, vocabulary]."""
        return self._probabilities(self.logits, self.ids())

    def ids(self) -> Tensor:
        """0 .. vocabulary - 1, int64."""
        return torch.arange(self.logits.shape[-1], device=self.logits.device)

    def draw(self, offset: int, minus: Row | None, uniform: float) -> int:
        """The first id of a row whose cumulative probability exceeds uniform * sum; never one of probability 0.

        Of [p - q]+ where there is a row to take away, or of p where that leaves nothing.
        """
        row = self.rows(slice(offset, offset + 1))
        if loops.take(self.logits):
            peak, value, first_id, mass = (field.item() for field in (row.peak, *row.cut[:3]))
            kept = drawing.Kept(peak, self.temperature, value, int(first_id), mass)
            return drawing.draw(row.logits[0].numpy(), kept, None, minus, uniform)
        ids = None if self.whole else row.support()
        p = (row.dense() if ids is None else row.at(ids[None]))[0]
        if minus is not None:
            q = scattered(minus, self.logits.shape[-1], self.logits.device)
            residual = (p - (q if ids is None else q[ids])).clamp_(min=0.0)
            p = torch.where(residual.any(), residual, p)
        index = inverse_cdf(p, uniform)
        return int(index if ids is None else ids[index])

    def support(self) -> Tensor:
        """Ids that at least one row keeps, ascending, int64 [k]."""
        ids = self.ids()
        return ids if self.whole else self.kept(self.logits, ids).any(0).nonzero()[:, 0]

    def kept(self, logits: Tensor, ids: Tensor) -> Tensor:
        """Which ids the cut keeps. logits: [rows, k]. ids: int64 [rows, k] or [k]."""
        return (logits > self.cut.value) | ((logits == self.cut.value) & (ids >= self.cut.first_id))

    def _probabilities(self, logits: Tensor, ids: Tensor) -> Tensor:
        probabilities = log_weights(logits, self.peak, self.temperature).exp_().div_(self.cut.mass)
        return probabilities if self.whole else probabilities.mul_(self.kept(logits, ids))


class Summary(NamedTuple):
    """Of every warped row, on the host: its largest logit, and the kept mass (1 / mass is its largest probability).

    peaks: [rows]; where one is NaN or -inf, nothing else about that row means anything. masses: [rows].
    """

    peaks: FloatArray
    masses: FloatArray


def warp(logits: Tensor, sampling: SamplingParams) -> tuple[Warped, Summary]:
    """The warped rows. logits: [rows, vocabulary], temperature above 0.

    One transfer, and one more where +inf or a wide nucleus turns up.
    """
    return _warp(logits, sampling, [search for search in SEARCHES if (search.width or 0) < logits.shape[-1]])


def _warp(logits: Tensor, sampling: SamplingParams, searches: Sequence[Search]) -> tuple[Warped, Summary]:
    warped = attempt(logits, sampling, searches[0])
    peaks, masses, found = torch.cat([warped.peak, warped.cut.mass, warped.cut.found], -1).cpu().numpy().T
    if np.isposinf(peaks).any():
        return _warp(forced(logits), sampling, searches)
    rows = np.flatnonzero((found == 0) & np.isfinite(peaks))
    if len(rows):
        device_rows = torch.from_numpy(rows).to(logits.device)
        wider, summary = _warp(logits[device_rows], sampling, searches[1:])
        masses[rows] = summary.masses
        warped = warped.recut(device_rows, wider.cut)
    return warped, Summary(peaks, masses)


def attempt(logits: Tensor, sampling: SamplingParams, search: Search) -> Warped:
    """temperature, top_k, top_p, min_p; the last two by `search`, which may not find their cut.

    Where a row holds NaN, +inf or nothing finite, its peak says so and the rest means nothing.
    """
    peak = logits.amax(-1, keepdim=True).to(torch.float64)
    if 0 < sampling.top_k < logits.shape[-1]:
        cut = top_k(logits, peak, sampling)
    else:
        cut = uncut(logits, _sums(logits, peak, sampling.temperature)[0])
    if sampling.top_p < 1.0 or sampling.min_p > 0.0:
        cut = narrowed(logits, peak, cut, sampling, search)
    return Warped(logits, sampling.temperature, peak, cut, uncuts(sampling, logits.shape[-1]))
