"""How near a text was to another one: recomputed where the two part, by the models themselves.

Greedy: the difference of the two best processed logits. `coupled`: of the two best perturbed log-probabilities. Other
rules: the smallest distance of a uniform from where its decision changes, of those that the round drew up to there.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from adasd.cli.findings import Case
from adasd.cli.fleet import Fleet
from adasd.core.context import Context
from adasd.core.draws import CounterDraws, DrawKey, Purpose
from adasd.core.errors import AdasdError
from adasd.core.host import HostKernels, HostTarget
from adasd.core.processing import Processor, process
from adasd.core.types import Draft, FloatArray
from adasd.runtime.base import CausalRuntime, Segment
from adasd.runtime.host_rows import host_rows
from adasd.runtime.loading import RuntimeOptions, load_model
from adasd.runtime.local import LocalPair
from adasd.runtime.replica import Replica
from adasd.runtime.toy import is_toy
from adasd.state.base import StoredSession
from adasd.state.redis_store import RedisStore
from services.gateway.costs import LiveCosts
from services.gateway.request import GenerationRequest
from services.gateway.sessions import Session


@dataclass(frozen=True, slots=True)
class Divergence:
    """Where two texts part. position: generated tokens before. expected, seen: the ids there; None past an end.

    margin: see above; what: what it is a difference of.
    """

    position: int
    expected: int | None
    seen: int | None
    margin: float
    what: str

    def __str__(self) -> str:
        return f"token {self.position}: {self.seen} instead of {self.expected}, margin {self.margin:.3g} ({self.what})"


@dataclass(frozen=True, slots=True)
class Models:
    """Both models in this process. pair: over the same runtimes."""

    target: CausalRuntime[Any]
    pair: LocalPair

    @classmethod
    def load(cls, draft: str, target: str) -> Models:
        options = RuntimeOptions(target=None if is_toy(target) else Path(target))
        runtime, kernels = load_model(target, "target", options)
        drafter = Replica(*load_model(draft, "draft", options))
        return cls(runtime, LocalPair(drafter, Replica(runtime, kernels)))

    def logits(self, ids: Sequence[int], request: GenerationRequest, rows: int = 1) -> FloatArray:
        """The target's last `rows` rows after these ids, processed for the request: float64 [rows, vocabulary]."""
        session = os.urandom(16)
        raw = self.target.forward([Segment(session, 0, list(ids), rows)])[0]
        self.target.release(session)
        logits = host_rows(self.target, raw)
        prompt, done = len(request.prompt), len(ids) - rows + 1
        edits = Processor(request.sampling.processing, ids[:done], prompt).edits(ids[done:], rows)
        return logits if edits is None else process(logits, edits)


def divergence(models: Models, expected: StoredSession, seen: Sequence[int]) -> Divergence | None:
    """Where the ids of a session, prompt first, part from those expected; None where they do not."""
    request, ids = Session.of_record(expected.record, LiveCosts()).generation, expected.ids
    place = next((n for n, pair in enumerate(zip(ids, seen, strict=False)) if pair[0] != pair[1]), None)
    if place is None:
        if len(ids) == len(seen):
            return None
        place = min(len(ids), len(seen))
    margin, what = _margin(models, request, ids, place)
    there = [row[place] if place < len(row) else None for row in (ids, seen)]
    return Divergence(place - len(request.prompt), there[0], there[1], margin, what)


def _margin(models: Models, request: GenerationRequest, ids: Sequence[int], place: int) -> tuple[float, str]:
    if not request.sampling.greedy and request.acceptance != "coupled":
        return _smallest_distance(models, request, place), "uniform from its boundary, of 1"
    (scores,) = models.logits(ids[:place], request)
    if request.sampling.greedy:
        return _gap(scores), "logits of the two best"
    (p,) = HostKernels().target(scores[None], request.sampling).p  # type: ignore[attr-defined]
    kept, draws = np.flatnonzero(p), CounterDraws(request.sampling.seed, request.sampling.choice)
    return _gap(np.log(p[kept]) + draws.gumbel(place, kept)), "perturbed log-probabilities of the two best"


def _gap(scores: FloatArray) -> float:
    """Between the two largest."""
    if len(scores) < 2:
        return float("inf")
    second, best = np.partition(scores, -2)[-2:]
    return float(best - second)


def _smallest_distance(models: Models, request: GenerationRequest, place: int) -> float:
    """Replay the request, and look at the round that the place falls into."""
    context, rule = Context(request.prompt), request.acceptance
    asked = request.prompt, request.sampling, request.stopping, rule, request.max_tokens
    for step in models.pair.generate(*asked):
        if context.base + len(step.verdict.tokens) > place:
            return min(_distances(models, request, context.ids, step.draft, step.verdict.accepted, place))
        context.extend(step.verdict.tokens)
    return float("inf")


def _distances(
    models: Models, request: GenerationRequest, ids: Sequence[int], draft: Draft, accepted: int, place: int
) -> Iterator[float]:
    base, sampling = len(ids), request.sampling
    logits = models.logits([*ids, *draft.ids], request, len(draft) + 1)
    target, draws = HostKernels().target(logits, sampling), CounterDraws(sampling.seed, sampling.choice)
    assert isinstance(target, HostTarget), "the host's kernels make the host's rows"
    for offset, evidence in enumerate(target.evidence(draft)[: min(accepted, place - base) + 1]):
        uniform = draws.uniform(DrawKey(base, offset, Purpose.ACCEPT))
        yield abs(uniform - min(1.0, evidence.p / evidence.q))
    if base + accepted == place:
        minus = draft.rows[accepted] if accepted < len(draft) else None
        yield _to_edge(target, accepted, minus, draws.uniform(DrawKey(base, accepted, Purpose.EMIT)))


def _to_edge(target: HostTarget, offset: int, minus: Any, uniform: float) -> float:
    """Of an emitted token's uniform, to the nearer edge of that token's part of [0, 1]."""
    edges = np.concatenate([[0.0], np.cumsum(target.residual(offset, minus))])
    inner = edges[1:-1] / edges[-1]
    return float(np.abs(inner - uniform).min()) if len(inner) else float("inf")


def explained(diverged: Sequence[tuple[Case, str]], fleet: Fleet) -> Iterator[str]:
    """A line for every text that differed from what was expected."""
    if not diverged:
        return
    models = Models.load(fleet.options.draft, fleet.options.target)
    for case, session in diverged:
        try:
            expected, seen = asyncio.run(_stored(fleet.redis.url, case.expected.session, session))
            found: object = divergence(models, expected, seen.ids)
        except AdasdError as error:
            found = error
        yield f"{case.rule}, session {session}: {found or 'the stored ids are the same'}"


async def _stored(url: str, *sessions: str) -> list[StoredSession]:
    store = RedisStore(url)
    try:
        found = [await store.load(bytes.fromhex(session)) for session in sessions]
    finally:
        await store.close()
    if any(one is None for one in found):
        raise AdasdError("a session is gone, so its ids cannot be compared")
    return [one for one in found if one is not None]
