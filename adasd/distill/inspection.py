"""Whether a draft and a target fit, how fast each steps, how often candidates will stand, and what follows from it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

from adasd.core.draws import CounterDraws, DrawKey, Purpose
from adasd.core.errors import InvalidRequest
from adasd.core.messages import ModelInfo
from adasd.core.sampling import warp
from adasd.core.types import FloatArray, SamplingParams
from adasd.runtime.base import CausalRuntime, Segment
from adasd.runtime.host_rows import host_rows

Runtime = CausalRuntime[Any]
SESSION = b"inspection------"


def check_fit(target: ModelInfo, draft: ModelInfo) -> list[str]:
    """What is worth knowing of a pair that fits. Raises InvalidRequest, with the reason, for one that does not."""
    if draft.vocabulary_fingerprint != target.vocabulary_fingerprint:
        raise InvalidRequest(
            f"{draft.name!r} has another vocabulary than {target.name!r}: "
            f"fingerprint {draft.vocabulary_fingerprint}, not {target.vocabulary_fingerprint}",
            "draft",
        )
    if set(draft.eos_ids) != set(target.eos_ids):
        raise InvalidRequest(
            f"{draft.name!r} ends at ids {sorted(draft.eos_ids)}, {target.name!r} at {sorted(target.eos_ids)}", "draft"
        )
    return [*_vocabulary_notes(target, draft), *_context_notes(target, draft)]


def _vocabulary_notes(target: ModelInfo, draft: ModelInfo) -> Iterator[str]:
    yield f"vocabulary {target.vocabulary_fingerprint}, ends at {', '.join(map(str, sorted(target.eos_ids)))}"
    if draft.vocabulary != target.vocabulary:
        yield f"padded differently, {draft.vocabulary} against {target.vocabulary}: only shared ids are drafted"
    if draft.support < draft.vocabulary:
        yield f"the draft knows {draft.support} of {draft.vocabulary} ids"


def _context_notes(target: ModelInfo, draft: ModelInfo) -> Iterator[str]:
    yield f"context of {target.context_length} positions, {draft.context_length} of them drafted for"


@dataclass(frozen=True, slots=True)
class Pace:
    """Medians of measured seconds. draft: one step of one position. verify[k]: a target pass over k + 1 positions."""

    draft: float
    verify: tuple[float, ...]


def measure_pace(target: Runtime, draft: Runtime, ids: Sequence[int], longest: int, repeats: int = 7) -> Pace:
    """Step times after the context `ids`, for blocks of up to `longest` candidates."""
    steps = tuple(_seconds(target, ids, rows, repeats) for rows in range(1, longest + 2))
    return Pace(_seconds(draft, ids, 1, repeats), steps)


def _seconds(runtime: Runtime, ids: Sequence[int], rows: int, repeats: int) -> float:
    base = max(0, len(ids) - rows)
    runtime.forward([Segment(SESSION, 0, ids[:base], 0)])
    found = []
    for _ in range(repeats + 1):  # the first warms up
        started = time.perf_counter()
        (logits,) = runtime.forward([Segment(SESSION, base, ids[base:], min(rows, len(ids)))])
        host_rows(runtime, logits[-1:])  # waits for the device
        found.append(time.perf_counter() - started)
    runtime.release(SESSION)
    return median(found[1:])


def overlaps(
    target: Runtime, draft: Runtime, prompt: Sequence[int], sampling: SamplingParams, tokens: int
) -> FloatArray:
    """sum min(p, q) at every position of an answer the target writes to `prompt`, [answer]."""
    draws, found, ids = CounterDraws(sampling.seed or 0), list[float](), list(prompt)
    base = 0
    for offset in range(tokens):
        p, q = (_row(runtime, ids, base, sampling) for runtime in (target, draft))
        shared = min(len(p), len(q))
        found.append(float(np.minimum(p[:shared], q[:shared]).sum()))
        base = len(ids)
        ids.append(draws.categorical(DrawKey(offset, 0, Purpose.EMIT), p))
        if ids[-1] in target.info().eos_ids:
            break
    for runtime in (target, draft):
        runtime.release(SESSION)
    return np.array(found)


def _row(runtime: Runtime, ids: Sequence[int], base: int, sampling: SamplingParams) -> FloatArray:
    (logits,) = runtime.forward([Segment(SESSION, base, ids[base:], 1)])
    return warp(host_rows(runtime, logits)[0], sampling)


def expected_tokens(answers: Sequence[FloatArray], length: int) -> float:
    """E[1 + accepted] of blocks of `length` candidates, begun at every position of the answers.

    A block stands as far as each of its candidates does; past the end of an answer nothing does.
    """
    total, starts = 0.0, 0
    for overlap in answers:
        padded = np.concatenate([overlap, np.zeros(length)])
        windows = np.lib.stride_tricks.sliding_window_view(padded, length)[: len(overlap)] if length else None
        total += len(overlap) + (0.0 if windows is None else float(np.cumprod(windows, axis=1).sum()))
        starts += len(overlap)
    return total / starts


@dataclass(frozen=True, slots=True)
class Forecast:
    """What blocks of `length` candidates would bring. speedup: tokens a second against the target alone."""

    length: int
    tokens: float
    speedup: float


def forecasts(answers: Sequence[FloatArray], pace: Pace) -> list[Forecast]:
    """One forecast a block length, 0 (no drafting) included."""
    return [_forecast(answers, pace, length) for length in range(len(pace.verify))]


def _forecast(answers: Sequence[FloatArray], pace: Pace, length: int) -> Forecast:
    tokens = expected_tokens(answers, length)
    return Forecast(length, tokens, tokens * pace.verify[0] / (length * pace.draft + pace.verify[length]))
