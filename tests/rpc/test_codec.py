"""Dataclasses to messages and back, through bytes."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings

from adasd.core.errors import AdasdError, InvalidDraft, InvalidRequest
from adasd.core.messages import (
    MAX_ROUNDS,
    ContextDelta,
    DraftReply,
    DraftRequest,
    ModelInfo,
    VerifyReply,
    VerifyRequest,
)
from adasd.core.rows import copied_block
from adasd.core.types import Draft, DraftPlan, SamplingParams
from adasd.core.verdicts import Judgement, Verdict
from adasd.core.worth import ENTROPY_NODES
from adasd.rpc import codec
from adasd.rpc.info import PROTOCOL, PeerInfo, decode_info, encode_info
from adasd.rpc.rows import OpaqueRow, encode_row
from adasd.rpc.v1 import common_pb2, drafter_pb2, verifier_pb2
from tests.rpc import messages


def through_bytes(message: Any) -> Any:
    return type(message).FromString(message.SerializeToString())


def comparable(draft: Draft) -> tuple[object, ...]:
    return draft.ids, draft.entropies, [encode_row(row) for row in draft.rows]


@given(messages.infos)
def test_info(info: ModelInfo) -> None:
    assert decode_info(through_bytes(encode_info(info))) == PeerInfo(info, PROTOCOL)


def test_what_passes_took_is_told() -> None:
    told = decode_info(through_bytes(encode_info(replace(messages.INFO, passes=(0.5, 0.625))))).model
    assert told.passes == (0.5, 0.625)


@given(messages.draft_requests)
def test_draft_request(request: DraftRequest) -> None:
    assert codec.decode_draft_request(through_bytes(codec.encode_draft_request(request))) == request


@given(messages.draft_replies)
def test_draft_reply(reply: DraftReply) -> None:
    decoded = codec.decode_draft_reply(through_bytes(codec.encode_draft_reply(reply)))
    assert (decoded.round_number, decoded.base) == (reply.round_number, reply.base)
    assert comparable(decoded.draft) == comparable(reply.draft)
    assert all(isinstance(row, OpaqueRow) for row in decoded.draft.rows)


@settings(max_examples=50)
@given(messages.verify_requests)
def test_verify_request(request: VerifyRequest) -> None:
    decoded = codec.decode_verify_request(through_bytes(codec.encode_verify_request(request)))
    assert comparable(decoded.draft) == comparable(request.draft)
    assert not any(isinstance(row, OpaqueRow) for row in decoded.draft.rows)
    for name in ("context", "sampling", "acceptance", "state", "round_number", "top_logprobs"):
        assert getattr(decoded, name) == getattr(request, name)


@given(messages.verify_replies)
def test_verify_reply(reply: VerifyReply) -> None:
    assert codec.decode_verify_reply(through_bytes(codec.encode_verify_reply(reply))) == reply


def context(**fields: Any) -> common_pb2.Context:
    sound = {"session": bytes(16), "base": 2, "start": 0, "ids": bytes(8)}
    return common_pb2.Context(**{**sound, **fields})


SAMPLING = common_pb2.Sampling(temperature=1, top_p=1)


def processed(**fields: Any) -> common_pb2.Sampling:
    processing = common_pb2.Processing(**{"repetition_penalty": 1.0, **fields})
    return common_pb2.Sampling(temperature=1, top_p=1, processing=processing)


def worth(**fields: Any) -> common_pb2.Worth:
    sound = {"acceptance": [0.5] * ENTROPY_NODES, "costs": common_pb2.CostProfile(verify=[1.0])}
    return common_pb2.Worth(**{**sound, **fields})


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"session": b"short"}, "context.session"),
        ({"ids": bytes(7)}, "context.ids"),
        ({"ids": bytes(12)}, "context.ids"),
        ({"start": 3}, "context.ids"),
    ],
)
def test_a_malformed_context_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    message = drafter_pb2.DraftRequest(context=context(**fields), sampling=SAMPLING)
    with pytest.raises(InvalidRequest) as raised:
        codec.decode_draft_request(message)
    assert raised.value.param == param


@pytest.mark.parametrize(
    ("sampling", "plan", "param"),
    [
        (common_pb2.Sampling(temperature=math.nan, top_p=1), None, "temperature"),
        (common_pb2.Sampling(temperature=1), None, "top_p"),
        (processed(repetition_penalty=0.0), None, "repetition_penalty"),
        (processed(frequency_penalty=math.nan), None, "frequency_penalty"),
        (processed(presence_penalty=2.5), None, "presence_penalty"),
        (processed(bias_ids=[1, 2], biases=[1.0]), None, "logit_bias"),
        (processed(bias_ids=[2, 1], biases=[1.0, 1.0]), None, "logit_bias"),
        (processed(bias_ids=[1], biases=[101.0]), None, "logit_bias"),
        (processed(eos_ids=[3, 3]), None, "eos_ids"),
        (processed(grammar=common_pb2.Grammar(kind="ebnf")), None, "structured_outputs"),
        (processed(grammar=common_pb2.Grammar(kind="regex"), min_tokens=1), None, "min_tokens"),
        (SAMPLING, common_pb2.DraftPlan(entropy_threshold=math.nan), "plan.entropy_threshold"),
        (SAMPLING, common_pb2.DraftPlan(max_candidates=65, worth=worth()), "plan.max_candidates"),
        (SAMPLING, common_pb2.DraftPlan(worth=worth(acceptance=[0.5])), "plan.worth.acceptance"),
        (SAMPLING, common_pb2.DraftPlan(worth=worth(mean=math.nan)), "plan.worth.acceptance"),
        (SAMPLING, common_pb2.DraftPlan(worth=worth(rate=math.inf)), "plan.worth.rate"),
        (SAMPLING, common_pb2.DraftPlan(worth=worth(costs=common_pb2.CostProfile(verify=[2, 1]))), "verify"),
        (SAMPLING, common_pb2.DraftPlan(worth=worth(costs=common_pb2.CostProfile(verify=[1], draft=-1))), "draft"),
    ],
)
def test_numbers_that_make_no_sense_are_refused_by_name(
    sampling: common_pb2.Sampling, plan: common_pb2.DraftPlan | None, param: str
) -> None:
    with pytest.raises(InvalidRequest) as raised:
        codec.decode_draft_request(drafter_pb2.DraftRequest(context=context(), sampling=sampling, plan=plan))
    assert raised.value.param == param


def test_too_many_alternatives_are_refused_by_name() -> None:
    with pytest.raises(InvalidRequest) as raised:
        codec.decode_verify_request(verifier_pb2.VerifyRequest(context=context(), sampling=SAMPLING, top_logprobs=21))
    assert raised.value.param == "top_logprobs"


def test_a_run_is_of_rounds_without_candidates() -> None:
    """An earlier gateway asks for no number of rounds, and means one."""
    asked = verifier_pb2.VerifyRequest(context=context(), sampling=SAMPLING)
    assert codec.decode_verify_request(asked).rounds == 1
    for wrong in ({"rounds": MAX_ROUNDS + 1}, {"further": MAX_ROUNDS}):
        with pytest.raises(InvalidRequest) as failure:
            codec.decode_verify_request(verifier_pb2.VerifyRequest(context=context(), sampling=SAMPLING, **wrong))
        assert failure.value.param == "rounds"


@pytest.mark.parametrize("expected", [None, 0.0, 0.625, 1.0])
def test_what_is_expected_of_candidates_is_told_or_not(expected: float | None) -> None:
    delta = ContextDelta(bytes(16), 0, 0, 0, [], b"")
    asked = VerifyRequest(delta, SamplingParams(), copied_block([3]), "exact", b"", 0, expected_acceptance=expected)
    assert (
        codec.decode_verify_request(through_bytes(codec.encode_verify_request(asked))).expected_acceptance == expected
    )
    for wrong in (-0.1, 1.1, math.nan, math.inf):
        with pytest.raises(InvalidRequest) as failure:
            replace(asked, expected_acceptance=wrong)
        assert failure.value.param == "expected_acceptance"


def test_an_earlier_verifier_answers_the_block_that_a_run_would_go_on_from() -> None:
    """It refuses several rounds with candidates, and does not know of the field for those after a block."""
    delta = ContextDelta(bytes(16), 0, 0, 0, [], b"")
    asked = VerifyRequest(delta, SamplingParams(), copied_block([3]), "exact", b"", 0, rounds=4)
    told = codec.encode_verify_request(asked)
    assert (told.rounds, told.further) == (0, 3)
    assert codec.decode_verify_request(through_bytes(told)).rounds == 4
    assert codec.encode_verify_request(replace(asked, rounds=1)).further == 0


def test_a_verdict_of_a_block_and_rounds_after_it_is_none_that_contradicts_itself() -> None:
    run = Verdict((3, 4, 5), 1, "bonus", (Judgement(0.1, True, True),))
    assert codec.decode_verify_reply(through_bytes(codec.encode_verify_reply(VerifyReply(0, 0, run)))).verdict == run
    for wrong in (replace(run, emission="recovered"), replace(run, emission="none"), replace(run, tokens=(3,))):
        with pytest.raises(AdasdError, match="a verdict with 1 accepted"):
            codec.decode_verify_reply(codec.encode_verify_reply(VerifyReply(0, 0, wrong)))


def test_parameters_that_change_nothing_take_no_room() -> None:
    plain = codec.encode_draft_request(
        DraftRequest(ContextDelta(bytes(16), 0, 0, 0, [], b""), SamplingParams(), DraftPlan(1), 0)
    )
    assert not plain.sampling.HasField("processing")
    assert codec.decode_draft_request(through_bytes(plain)).sampling == SamplingParams()


POINT = b"\x00\x05\x00\x00\x00"


@pytest.mark.parametrize(
    "draft",
    [
        common_pb2.Draft(ids=bytes(3), entropies=[1.0], rows=[POINT]),
        common_pb2.Draft(ids=bytes(8), entropies=[1.0], rows=[POINT]),
        common_pb2.Draft(ids=bytes(4), entropies=[], rows=[POINT]),
        common_pb2.Draft(ids=bytes(4), entropies=[math.nan], rows=[POINT]),
        common_pb2.Draft(ids=bytes(4), entropies=[math.inf], rows=[POINT]),
        common_pb2.Draft(ids=bytes(4), entropies=[-1.0], rows=[POINT]),
    ],
)
def test_a_block_whose_parts_do_not_fit_is_the_drafters_fault(draft: common_pb2.Draft) -> None:
    with pytest.raises(InvalidDraft):
        codec.decode_draft_reply(drafter_pb2.DraftReply(draft=draft))
    with pytest.raises(InvalidDraft):
        codec.decode_verify_request(verifier_pb2.VerifyRequest(context=context(), sampling=SAMPLING, draft=draft))


def test_the_gateway_does_not_look_into_rows_and_the_verifier_does() -> None:
    draft = common_pb2.Draft(ids=bytes(4), entropies=[1.0], rows=[b"no row"])
    assert codec.decode_draft_reply(drafter_pb2.DraftReply(draft=draft)).draft.rows == (OpaqueRow(b"no row"),)
    with pytest.raises(InvalidDraft):
        codec.decode_verify_request(verifier_pb2.VerifyRequest(context=context(), sampling=SAMPLING, draft=draft))


def told(*logprobs: verifier_pb2.TokenLogprobs) -> verifier_pb2.VerifyReply:
    return verifier_pb2.VerifyReply(tokens=bytes(4), emission=verifier_pb2.EMISSION_BONUS, logprobs=logprobs)


@pytest.mark.parametrize(
    "reply",
    [
        verifier_pb2.VerifyReply(tokens=bytes(8), accepted=2, emission=verifier_pb2.EMISSION_BONUS),
        verifier_pb2.VerifyReply(tokens=bytes(12), accepted=1, emission=verifier_pb2.EMISSION_RECOVERED),
        verifier_pb2.VerifyReply(tokens=bytes(8), emission=verifier_pb2.EMISSION_RECOVERED),
        verifier_pb2.VerifyReply(emission=verifier_pb2.EMISSION_BONUS),
        verifier_pb2.VerifyReply(tokens=bytes(7), accepted=1, emission=verifier_pb2.EMISSION_NONE),
        verifier_pb2.VerifyReply(tokens=bytes(8), accepted=1, emission=9),  # type: ignore[arg-type]
        told(verifier_pb2.TokenLogprobs(), verifier_pb2.TokenLogprobs()),
        told(verifier_pb2.TokenLogprobs(logprob=math.nan)),
        told(verifier_pb2.TokenLogprobs(top_ids=[1], top=[-math.inf])),
        told(verifier_pb2.TokenLogprobs(top_ids=[1, 2], top=[-1.0])),
    ],
)
def test_a_verdict_that_contradicts_itself_is_refused(reply: verifier_pb2.VerifyReply) -> None:
    with pytest.raises(AdasdError):
        codec.decode_verify_reply(reply)
