"""A block that is read in two parts is judged as one that is read at once; its rest only where its beginning stands."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from adasd.core.adaptive import AcceptanceState
from adasd.core.context import Context
from adasd.core.density import Histogram, Posterior
from adasd.core.grammar import Grammar
from adasd.core.host import HostKernels
from adasd.core.messages import DraftRequest, Timing, VerifyRequest
from adasd.core.parts import first_part
from adasd.core.rows import PointRow
from adasd.core.types import Draft, DraftPlan, Processing, SamplingParams
from adasd.core.verdicts import Verdict
from adasd.core.verification import VERIFICATIONS, verification
from adasd.kernels.device import DeviceKernels
from adasd.runtime import replica as replicas
from adasd.runtime.batching import Schedule
from adasd.runtime.cores import SharedCores
from adasd.runtime.local import whole
from adasd.runtime.passes import Job
from adasd.runtime.replica import Replica
from adasd.runtime.toy import ToyRuntime, ToySpec
from tests.core.listed import ListedGrammars
from tests.runtime.models import CHUNK, ragged

SESSION, PROMPT = b"s" * 16, [3, 1, 4, 1, 5]
STEEP = (1.0, 1.1, 1.3, 2.0, 4.0, 8.0)
CANDIDATES, EXPECTED = 12, 0.5
FIRST = first_part(CANDIDATES, EXPECTED, STEEP)
LEARNED = AcceptanceState(posterior=Posterior(Histogram().add([0.1, 0.2, 0.3] * 3), Histogram().add([0.5, 0.6] * 3)))


def toy(mix: float = 0.0) -> Replica[Any]:
    return Replica(ToyRuntime(ToySpec(1, 32, mix=mix, stranger=2)), HostKernels())


def llama(mix: float = 0.0) -> Replica[Any]:
    return Replica(ragged("llama"), DeviceKernels(), Schedule(CHUNK, 2, 1))


def timed(held: Replica[Any], monkeypatch: pytest.MonkeyPatch) -> Replica[Any]:
    """It has measured passes that take longer the more rows they have."""
    with monkeypatch.context() as patched:
        patched.setattr(replicas, "pace", lambda *_: STEEP)
        assert held.pace("target", SharedCores()) == STEEP
    return held


def question(context: Context, draft: Draft, acceptance: str, sampling: SamplingParams, **more: Any) -> VerifyRequest:
    state = LEARNED.pack()
    return VerifyRequest(whole(SESSION, context), sampling, draft, acceptance, state, 0, **more)


def verdict_of(held: Replica[Any], asked: VerifyRequest) -> tuple[Verdict, Timing]:
    told: list[Any] = []
    held.batcher.add(Job(held.verify_steps(asked), lambda *result: told.append(result)))
    while not told:
        held.batcher.step()
    verdict, timing = told[0]
    if isinstance(verdict, BaseException):
        raise verdict
    return verdict, timing


def _without_distances(verdict: Verdict) -> Verdict:
    """And losses."""
    bare = [replace(judgement, distance=0.0, loss=0.0) for judgement in verdict.judgements]
    return replace(verdict, judgements=tuple(bare))


@pytest.mark.parametrize("acceptance", VERIFICATIONS)
@pytest.mark.parametrize("make", [toy, llama])
def test_a_text_is_the_same(make: Callable[[float], Replica[Any]], acceptance: str, monkeypatch: Any) -> None:
    """Blocks that fall at once, and some that stand as a whole: distances to what torch rounds by a pass's length."""
    draft, at_once, in_parts = make(0.05), make(0.0), timed(make(0.0), monkeypatch)
    plan, passes = DraftPlan(CANDIDATES, coupled=verification(acceptance).coupled), list[tuple[int, int]]()
    for seed in range(6):
        context, sampling = Context(PROMPT), SamplingParams(temperature=0.9, seed=seed)
        while context.base < 40:
            block = draft.propose(DraftRequest(whole(SESSION, context), sampling, plan, 0))
            expected, one = verdict_of(at_once, question(context, block, acceptance, sampling))
            asked = question(context, block, acceptance, sampling, expected_acceptance=EXPECTED)
            found, timing = verdict_of(in_parts, asked)
            distances = [judgement.distance for judgement in found.judgements]
            assert distances == pytest.approx([judgement.distance for judgement in expected.judgements], abs=1e-4)
            assert _without_distances(found) == _without_distances(expected)
            assert one.forwards == 1 or context.base == len(PROMPT), "the prompt comes in pieces"
            if context.base > len(PROMPT) and len(block) == CANDIDATES:
                passes.append((found.accepted, timing.forwards))
            context.extend(found.tokens)
        for held in (draft, at_once, in_parts):
            held.release(SESSION)
    assert {forwards for accepted, forwards in passes if accepted < FIRST} <= {1}
    assert {forwards for accepted, forwards in passes if accepted >= FIRST} == {2}


def test_what_was_learned_of_the_draft_counts(monkeypatch: Any) -> None:
    """Blocks that will stand are read at once, short ones as well, and so is whatever nothing is said of."""
    context, sampling = Context(PROMPT), SamplingParams(temperature=0.9)
    stranger = toy(0.9).propose(DraftRequest(whole(SESSION, context), sampling, DraftPlan(CANDIDATES), 0))
    for length, expected, rows in ((12, 0.5, FIRST + 1), (12, 1.0, 13), (12, None, 13), (2, 0.5, 3)):
        asked = question(context, stranger.cut(length), "exact", sampling, expected_acceptance=expected)
        verdict, timing = verdict_of(timed(toy(), monkeypatch), asked)
        assert verdict.accepted < FIRST
        assert (timing.forwards, timing.tokens) == (1, len(PROMPT) + rows - 1)


def test_log_probabilities_are_of_all_rows(monkeypatch: Any) -> None:
    held, context = timed(toy(), monkeypatch), Context(PROMPT)
    sampling = SamplingParams(temperature=0.9, seed=1, ignore_eos=True)
    block = toy().propose(DraftRequest(whole(SESSION, context), sampling, DraftPlan(CANDIDATES), 0))
    asked = question(context, block, "exact", sampling, top_logprobs=1, expected_acceptance=EXPECTED)
    verdict, timing = verdict_of(held, asked)
    assert (len(block), verdict.accepted >= FIRST) == (CANDIDATES, True)
    assert (timing.forwards, len(verdict.logprobs)) == (1, len(verdict.tokens))


def test_a_grammar_is_followed_in_both_parts(monkeypatch: Any) -> None:
    """To the candidate that it does not allow, which no part may judge."""
    text = (*range(2, 2 + CANDIDATES), 20)
    grammars, grammar = ListedGrammars({text}, 32), Grammar("regex", "whatever")
    held = timed(Replica(ToyRuntime(ToySpec(1, 32)), HostKernels(), None, grammars), monkeypatch)
    drafter = Replica(ToyRuntime(ToySpec(1, 32, mix=0.2, stranger=2)), HostKernels(), None, grammars)
    sampling = SamplingParams(seed=1, processing=Processing(eos_ids=(0,), grammar=grammar))
    context = Context(PROMPT)
    block = drafter.propose(DraftRequest(whole(SESSION, context), sampling, DraftPlan(CANDIDATES), 0))
    asked = question(context, block, "exact", sampling, expected_acceptance=EXPECTED)
    verdict, timing = verdict_of(held, asked)
    assert (verdict.tokens, timing.forwards) == (text, 2)
    wrong = Draft((*block.ids[:-1], 30), block.entropies, (*block.rows[:-1], PointRow(30)))
    verdict, timing = verdict_of(held, question(context, wrong, "exact", sampling, expected_acceptance=EXPECTED))
    assert (verdict.accepted, timing.forwards) == (CANDIDATES - 1, 2)
    assert verdict.tokens == text[:CANDIDATES]
