"""Domain dataclasses to protobuf messages and back: what a peer sends is checked here, once, for shape.

Whether the values make sense to a model (ids within the vocabulary, a block within the limit) is the services' to say.
"""

from __future__ import annotations

import math
from dataclasses import replace

from adasd.core.context import pack_ids, unpack_ids
from adasd.core.errors import AdasdError, InvalidDraft, InvalidRequest
from adasd.core.messages import (
    ContextDelta,
    DraftReply,
    DraftRequest,
    Judged,
    NextRound,
    Timing,
    VerifyReply,
    VerifyRequest,
)
from adasd.core.types import Draft, Row
from adasd.core.verdicts import Emission, Judgement, TokenLogprobs, Verdict
from adasd.rpc.plans import decode_course, decode_plan, encode_course, encode_plan
from adasd.rpc.rows import OpaqueRow, decode_row, encode_row
from adasd.rpc.sampling import decode_sampling, encode_sampling
from adasd.rpc.v1 import common_pb2, drafter_pb2, verifier_pb2

SESSION_BYTES = 16
ID_BYTES = 4

_EMISSIONS: dict[Emission, verifier_pb2.Emission] = {
    "none": verifier_pb2.EMISSION_NONE,
    "recovered": verifier_pb2.EMISSION_RECOVERED,
    "bonus": verifier_pb2.EMISSION_BONUS,
}
_EMISSION_NAMES = {number: name for name, number in _EMISSIONS.items()}
_NEXT_ROUNDS: dict[NextRound, verifier_pb2.NextRound] = {
    "unknown": verifier_pb2.NEXT_ROUND_UNKNOWN,
    "plain": verifier_pb2.NEXT_ROUND_PLAIN,
    "none": verifier_pb2.NEXT_ROUND_NONE,
}
_NEXT_ROUND_NAMES = {number: name for name, number in _NEXT_ROUNDS.items()}


def encode_draft_request(request: DraftRequest) -> drafter_pb2.DraftRequest:
    return drafter_pb2.DraftRequest(
        context=_encode_context(request.context),
        sampling=encode_sampling(request.sampling),
        plan=encode_plan(request.plan),
        round=request.round_number,
    )


def decode_draft_request(message: drafter_pb2.DraftRequest) -> DraftRequest:
    """Raises InvalidRequest, naming the field."""
    context, sampling = _decode_context(message.context), decode_sampling(message.sampling)
    return DraftRequest(context, sampling, decode_plan(message.plan), message.round)


def encode_draft_reply(reply: DraftReply) -> drafter_pb2.DraftReply:
    return drafter_pb2.DraftReply(
        round=reply.round_number, base=reply.base, draft=_encode_draft(reply.draft), timing=_encode_timing(reply.timing)
    )


def decode_draft_reply(message: drafter_pb2.DraftReply) -> DraftReply:
    """Leaves the rows as they are: the gateway forwards them. Raises InvalidDraft."""
    rows = tuple(OpaqueRow(encoded) for encoded in message.draft.rows)
    return DraftReply(message.round, message.base, _decode_draft(message.draft, rows), _decode_timing(message.timing))


def encode_verify_request(request: VerifyRequest) -> verifier_pb2.VerifyRequest:
    return verifier_pb2.VerifyRequest(
        context=_encode_context(request.context),
        sampling=encode_sampling(request.sampling),
        draft=_encode_draft(request.draft),
        acceptance=request.acceptance,
        state=request.state,
        round=request.round_number,
        top_logprobs=request.top_logprobs,
        next_round=_NEXT_ROUNDS[request.next_round],
        rounds=0 if len(request.draft) else request.rounds,
        further=request.rounds - 1 if len(request.draft) else 0,
        expected_acceptance=request.expected_acceptance,
        plan=None if request.plan is None else encode_plan(request.plan),
        course=None if request.course is None else encode_course(request.course),
    )


def decode_verify_request(message: verifier_pb2.VerifyRequest) -> VerifyRequest:
    """Decodes the rows too. Raises InvalidDraft for what a drafter sent, else InvalidRequest, naming the field."""
    return VerifyRequest(
        context=_decode_context(message.context),
        sampling=decode_sampling(message.sampling),
        draft=_decode_draft(message.draft, tuple(decode_row(encoded) for encoded in message.draft.rows)),
        acceptance=message.acceptance,
        state=message.state,
        round_number=message.round,
        top_logprobs=message.top_logprobs if message.HasField("top_logprobs") else None,
        next_round=_NEXT_ROUND_NAMES.get(message.next_round, "unknown"),
        rounds=(message.rounds or 1) + message.further,
        expected_acceptance=message.expected_acceptance if message.HasField("expected_acceptance") else None,
        plan=decode_plan(message.plan) if message.HasField("plan") else None,
        course=decode_course(message.course, message.plan.coupled) if message.HasField("course") else None,
    )


def encode_verify_reply(reply: VerifyReply) -> verifier_pb2.VerifyReply:
    message = _encode_judged(Judged(reply.draft, reply.verdict))
    message.round, message.base = reply.round_number, reply.base
    message.timing.CopyFrom(_encode_timing(reply.timing))
    if reply.drafting.forwards:
        message.drafting.CopyFrom(_encode_timing(reply.drafting))
    message.further.extend(map(_encode_judged, reply.further))
    return message


def decode_verify_reply(message: verifier_pb2.VerifyReply) -> VerifyReply:
    """Raises AdasdError for a verdict that contradicts itself: a bug of the verifier."""
    (draft, verdict), *further = map(_decode_judged, (message, *message.further))
    timing, drafting = _decode_timing(message.timing), _decode_timing(message.drafting)
    return VerifyReply(message.round, message.base, verdict, timing, draft, drafting, tuple(further))


def _encode_judged(judged: Judged) -> verifier_pb2.VerifyReply:
    draft, verdict = judged
    return verifier_pb2.VerifyReply(
        tokens=pack_ids(verdict.tokens),
        accepted=verdict.accepted,
        emission=_EMISSIONS[verdict.emission],
        judgements=[_encode_judgement(judgement) for judgement in verdict.judgements],
        logprobs=[_encode_logprobs(entry) for entry in verdict.logprobs],
        draft=_encode_draft(draft) if len(draft) else None,
    )


def _decode_judged(message: verifier_pb2.VerifyReply) -> Judged:
    return Judged(_decode_told(message.draft), _decode_verdict(message))


def _decode_verdict(message: verifier_pb2.VerifyReply) -> Verdict:
    emission = _EMISSION_NAMES.get(message.emission)
    tokens = tuple(unpack_ids(message.tokens)) if len(message.tokens) % ID_BYTES == 0 else ()
    run = emission == "bonus" and len(tokens) > message.accepted + 1
    if emission is None or (len(tokens) != message.accepted + (emission != "none") and not run):
        raise AdasdError(
            f"a verdict with {message.accepted} accepted candidates and {len(message.tokens)} bytes of ids"
        )
    logprobs = tuple(_decode_logprobs(entry) for entry in message.logprobs)
    if logprobs and len(logprobs) != len(tokens):
        raise AdasdError(f"a verdict of {len(tokens)} tokens with {len(logprobs)} log-probabilities")
    judgements = tuple(_decode_judgement(judgement) for judgement in message.judgements)
    return Verdict(tokens, message.accepted, emission, judgements, logprobs)


def _encode_timing(timing: Timing) -> common_pb2.Timing:
    return common_pb2.Timing(
        forwards=timing.forwards,
        queue=timing.queue,
        forward=timing.forward,
        rules=timing.rules,
        sessions=timing.sessions,
        tokens=timing.tokens,
        ahead=timing.ahead,
    )


def _decode_timing(message: common_pb2.Timing) -> Timing:
    seconds = message.queue, message.forward, message.rules
    return Timing(message.forwards, *seconds, message.sessions, message.tokens, message.ahead)


def _encode_context(context: ContextDelta) -> common_pb2.Context:
    return common_pb2.Context(
        session=context.session,
        base=context.base,
        prompt_length=context.prompt_length,
        start=context.start,
        ids=pack_ids(context.ids),
        hash=context.hash,
    )


def _decode_context(message: common_pb2.Context) -> ContextDelta:
    if len(message.session) != SESSION_BYTES:
        raise InvalidRequest(
            f"context.session has {SESSION_BYTES} bytes, got {len(message.session)}", "context.session"
        )
    if len(message.ids) != ID_BYTES * (message.base - message.start):
        raise InvalidRequest(
            f"context.ids must hold the ids from {message.start} to {message.base}, got {len(message.ids)} bytes",
            "context.ids",
        )
    return ContextDelta(
        session=message.session,
        base=message.base,
        prompt_length=message.prompt_length,
        start=message.start,
        ids=unpack_ids(message.ids),
        hash=message.hash,
    )


def _encode_draft(draft: Draft) -> common_pb2.Draft:
    return common_pb2.Draft(
        ids=pack_ids(draft.ids),
        entropies=draft.entropies,
        rows=[encode_row(row) for row in draft.rows],
        copied=draft.copied,
    )


def _decode_draft(message: common_pb2.Draft, rows: tuple[Row, ...]) -> Draft:
    if len(message.ids) != ID_BYTES * len(rows):
        raise InvalidDraft(f"a block of {len(rows)} rows with {len(message.ids)} bytes of ids")
    return replace(_decode_told(message), rows=rows)


def _decode_told(message: common_pb2.Draft) -> Draft:
    """Without rows: what the gateway is told of candidates that have been judged."""
    entropies = tuple(message.entropies)
    if len(message.ids) != ID_BYTES * len(entropies):
        raise InvalidDraft(f"a block with {len(entropies)} entropies and {len(message.ids)} bytes of ids")
    if not all(0.0 <= entropy < math.inf for entropy in entropies):
        raise InvalidDraft("entropies must be finite and not negative")
    return Draft(tuple(unpack_ids(message.ids)), entropies, copied=message.copied)


def _encode_judgement(judgement: Judgement) -> verifier_pb2.Judgement:
    return verifier_pb2.Judgement(
        distance=judgement.distance,
        exact=judgement.exact,
        accepted=judgement.accepted,
        loss=judgement.loss,
        floored=judgement.floored,
    )


def _decode_judgement(message: verifier_pb2.Judgement) -> Judgement:
    return Judgement(message.distance, message.exact, message.accepted, message.loss, message.floored)


def _encode_logprobs(entry: TokenLogprobs) -> verifier_pb2.TokenLogprobs:
    return verifier_pb2.TokenLogprobs(logprob=entry.logprob, top_ids=entry.top_ids, top=entry.top)


def _decode_logprobs(message: verifier_pb2.TokenLogprobs) -> TokenLogprobs:
    """Raises AdasdError for what is not a number, or lists that do not fit."""
    if len(message.top_ids) != len(message.top) or not all(map(math.isfinite, (message.logprob, *message.top))):
        raise AdasdError("log-probabilities of a token must be finite, with one id each")
    return TokenLogprobs(message.logprob, tuple(message.top_ids), tuple(message.top))
