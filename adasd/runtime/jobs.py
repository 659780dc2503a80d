"""What a replica is asked to do, as generators: each yields the pass it needs next and is sent what came of it.

So a batcher can step many of them together, and a block of candidates joins and leaves batches between tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import NamedTuple

from adasd.core.adaptive import AcceptanceState, packed_posterior
from adasd.core.context import Text
from adasd.core.decoding import copied
from adasd.core.density import Posterior
from adasd.core.drafting import Block
from adasd.core.draws import CounterDraws
from adasd.core.errors import AdasdError, ContextLengthExceeded, GrammarFault, InvalidDraft, InvalidRequest
from adasd.core.messages import ContextDelta, DraftRequest, Judged, ModelInfo, VerifyRequest
from adasd.core.parts import first_part
from adasd.core.processing import Processor
from adasd.core.types import Draft, DraftPlan, SamplingParams
from adasd.core.verdicts import Verdict
from adasd.core.verification import judging, verification
from adasd.runtime.passes import Pass, Planned, Run, Steps, Taken
from adasd.runtime.sessions import Sessions

_NOTHING_JUDGED = Posterior()


class Side(NamedTuple):
    """One of two models beside each other."""

    sessions: Sessions
    info: ModelInfo


def draft_steps(sessions: Sessions, info: ModelInfo, request: DraftRequest) -> Steps[Draft]:
    """Read the context, then draft as far as the plan goes."""
    known = sessions.learn(request.context)
    return (yield from _draft(sessions, info, request.context, request.sampling, request.plan, known))


def _draft(
    sessions: Sessions,
    info: ModelInfo,
    context: ContextDelta,
    sampling: SamplingParams,
    plan: DraftPlan,
    known: Sequence[int],
) -> Steps[Draft]:
    session = context.session
    check_length(known, info)
    if plan.max_candidates == 0:
        yield Pass(session, known, 0, sampling, "draft")
        return Draft()
    plan = plan.limited(info.context_length - len(known))
    eos_ids = () if sampling.ignore_eos else info.eos_ids
    block = Block(plan, len(known), _draws(sampling), eos_ids)
    processor = _processor(sessions, context, sampling, known)
    while block.goes_on:
        try:
            edits = processor.edits(block.ids)
        except GrammarFault:  # whether the text can go on is the target's to say
            sessions.lose_progress(session)
            break
        block.take((yield Pass(session, [*known, *block.ids], 1, sampling, "draft", edits, block)))
    return block.draft()


def planned_steps(beside: Side, target: Side, request: VerifyRequest, pace: tuple[float, ...] = ()) -> Steps[Planned]:
    """Draft as the request's plan has it, judge the block, and go on as its course has it: to the end of the text, or
    to what cannot be answered, which the gateway learns by asking for it.

    beside: the draft model. pace: as of `verify_steps`. Raises InvalidDraft for whatever keeps the draft model from the
    first block.
    """
    check_biases(request.sampling, target.info)
    context, plan, course, rounds = request.context, request.plan, request.course, list[Judged]()
    known, state = target.sessions.learn(context), AcceptanceState.unpack(request.state)
    text, labels = Text(known, context.prompt_length), verification(request.acceptance).labels
    while plan is not None:
        try:
            judged = yield from _planned_and_judged(beside, target, request, plan, known, state.posterior, pace)
        except AdasdError:
            if not rounds:
                raise
            break
        rounds.append(judged)
        known = target.sessions.grow(context.session, judged.verdict.tokens)
        text.extend(judged.verdict.tokens)
        ended = at_end(judged.verdict, request.sampling, target.info.eos_ids)
        if ended or course is None or len(rounds) == course.rounds or text.base >= course.limit:
            break
        state = state.after(*judged, labels, plan)
        plan = course.plan(state, text)
    return Planned(tuple(rounds))


def _planned_and_judged(
    beside: Side,
    target: Side,
    request: VerifyRequest,
    plan: DraftPlan,
    known: Sequence[int],
    posterior: Posterior,
    pace: tuple[float, ...],
) -> Steps[Judged]:
    """One round after `known`."""
    draft = copied(plan) or (yield from _drafted(beside, target, request, plan, known))
    asked = replace(request, draft=draft, acceptance=judging(request.acceptance, draft), plan=None, course=None)
    return Judged(draft, (yield from _judge(*target, asked, known, posterior, 1, pace)))


def _drafted(beside: Side, target: Side, request: VerifyRequest, plan: DraftPlan, known: Sequence[int]) -> Steps[Draft]:
    """What the draft model gives; it reads nothing for a round without candidates."""
    if plan.max_candidates == 0:
        return Draft()
    beside.sessions.follow(request.context.session, target.sessions)
    try:
        return (yield from _draft(*beside, request.context, request.sampling, plan, known))
    except AdasdError as error:
        raise InvalidDraft(f"the drafter beside: {error}") from error


def verify_steps(
    sessions: Sessions,
    info: ModelInfo,
    request: VerifyRequest,
    passes: Callable[[], int],
    pace: tuple[float, ...] = (),
) -> Steps[Verdict]:
    """Judge one block, and take up to `request.rounds` rounds in all, the others without candidates: to the end of the
    text, or to what cannot be answered, which the gateway learns by asking for it.

    Runs of one length end together, whenever they began: sessions that are away for their messages at different times
    are missing in passes that cost the others the same. The session then knows what came of rounds without candidates,
    before it is told. passes: of the model, so far. pace: seconds of one over 1, 2, 4, ... rows.
    """
    check_biases(request.sampling, info)
    known = sessions.learn(request.context)
    alone = len(request.draft) > 0 and request.rounds == 1
    if alone:
        return (yield from _judge(sessions, info, request, known, _posterior(request), 1, pace))
    rounds = _rounds_left(request, 0, passes())
    verdict = yield from _judge(sessions, info, request, known, _posterior(request), rounds)
    fresh, plain = verdict, replace(request, draft=Draft())
    while True:
        known = sessions.grow(request.context.session, fresh.tokens)
        full = passes() % request.rounds == 0 or verdict.rounds >= request.rounds  # it may have missed that pass
        if full or at_end(verdict, request.sampling, info.eos_ids):
            return verdict
        try:
            rounds = _rounds_left(request, verdict.rounds, passes())
            fresh = yield from _judge(sessions, info, plain, known, _NOTHING_JUDGED, rounds)
        except AdasdError:
            return verdict
        verdict = verdict.then(fresh)


def _rounds_left(request: VerifyRequest, taken: int, passes: int) -> int:
    """Until the run is as long as it may be, or the number of passes a multiple of that."""
    return min(request.rounds - taken, request.rounds - passes % request.rounds)


def at_end(verdict: Verdict, sampling: SamplingParams, eos_ids: Collection[int]) -> bool:
    """Whether the text ends with this."""
    return not sampling.ignore_eos and any(token in eos_ids for token in verdict.tokens)


def is_last(request: VerifyRequest, verdict: Verdict, eos_ids: Collection[int]) -> bool:
    """Whether no question will follow this answer, as far as a verifier can tell: stop strings are the gateway's."""
    return request.next_round == "none" or at_end(verdict, request.sampling, eos_ids)


def _judge(
    sessions: Sessions,
    info: ModelInfo,
    request: VerifyRequest,
    known: Sequence[int],
    posterior: Posterior,
    rounds: int,
    pace: tuple[float, ...] = (),
) -> Steps[Verdict]:
    """One block: a pass over what the KV lacks and the candidates, or two, then the acceptance rule.

    posterior: by which candidates are judged. rounds: that may be taken at once where there are none.
    """
    session, sampling, draft = request.context.session, request.sampling, request.draft
    method, draws = verification(request.acceptance), _draws(sampling)
    check_length([*known, *draft.ids], info)
    processor, run = _processor(sessions, request.context, sampling, known), _run(info, request, known, rounds)
    verdict: Verdict | None = None
    for end in _parts(request, pace):
        judged = verdict.judgements if verdict else ()
        part, rows = draft.cut(end), end - len(judged) + 1
        try:
            edits = processor.edits(part.ids, rows)
        except GrammarFault:
            sessions.lose_progress(session)
            raise
        target = yield Pass(session, [*known, *part.ids], rows, sampling, "target", edits, run=run)
        if isinstance(target, Taken):
            return Verdict(tuple(target.tokens), 0, "bonus", ())
        verdict = method.verify(target, part, posterior, len(known), draws, judged)
        if verdict.accepted < end:
            break
    assert verdict is not None, "a block has a part at least"
    if request.top_logprobs is None:
        return verdict
    return replace(verdict, logprobs=tuple(target.logprobs(verdict.tokens, request.top_logprobs)))


def _parts(request: VerifyRequest, pace: tuple[float, ...]) -> Sequence[int]:
    """Where the parts of the block end that are read one after the other."""
    length = len(request.draft)
    if request.expected_acceptance is None or request.top_logprobs is not None:  # these are of all rows
        return (length,)
    first = first_part(length, request.expected_acceptance, pace)
    return (first, length) if first < length else (length,)


def _run(info: ModelInfo, request: VerifyRequest, known: Sequence[int], rounds: int) -> Run | None:
    """What may be taken at once."""
    coupled = verification(request.acceptance).coupled
    if rounds == 1 or len(request.draft) or coupled or request.top_logprobs is not None:
        return None
    eos_ids = () if request.sampling.ignore_eos else info.eos_ids
    return Run(min(rounds, info.context_length - len(known) + 1), len(known), _draws(request.sampling), eos_ids)


def _draws(sampling: SamplingParams) -> CounterDraws:
    return CounterDraws(sampling.seed, sampling.choice)


def _posterior(request: VerifyRequest) -> Posterior:
    """By which candidates are judged; where there are none nobody reads the state."""
    return packed_posterior(request.state) if len(request.draft) else _NOTHING_JUDGED


def _processor(sessions: Sessions, context: ContextDelta, sampling: SamplingParams, known: Sequence[int]) -> Processor:
    """Raises InvalidRequest for a grammar that is none."""
    progress = sessions.progress(context.session, sampling.processing)
    return Processor(sampling.processing, known, context.prompt_length, progress)


def check_biases(sampling: SamplingParams, info: ModelInfo) -> None:
    """Refuse a bias on an id that the model does not have. A draft may have fewer, and cannot draft such an id."""
    if sampling.processing.logit_bias and sampling.processing.logit_bias[-1][0] >= info.vocabulary:
        raise InvalidRequest(f"the ids of logit_bias must lie within [0, {info.vocabulary})", "logit_bias")


def check_length(ids: Sequence[int], info: ModelInfo) -> None:
    """Refuse what the model cannot attend to."""
    if len(ids) > info.context_length:
        raise ContextLengthExceeded(f"{len(ids)} positions, the model attends to {info.context_length}")
