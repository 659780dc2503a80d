from adasd.rpc.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class NextRound(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    NEXT_ROUND_UNKNOWN: _ClassVar[NextRound]
    NEXT_ROUND_PLAIN: _ClassVar[NextRound]
    NEXT_ROUND_NONE: _ClassVar[NextRound]

class Emission(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    EMISSION_NONE: _ClassVar[Emission]
    EMISSION_RECOVERED: _ClassVar[Emission]
    EMISSION_BONUS: _ClassVar[Emission]
NEXT_ROUND_UNKNOWN: NextRound
NEXT_ROUND_PLAIN: NextRound
NEXT_ROUND_NONE: NextRound
EMISSION_NONE: Emission
EMISSION_RECOVERED: Emission
EMISSION_BONUS: Emission

class VerifyRequest(_message.Message):
    __slots__ = ("context", "sampling", "draft", "acceptance", "state", "round", "top_logprobs", "next_round", "rounds", "further", "expected_acceptance", "plan", "course")
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    DRAFT_FIELD_NUMBER: _ClassVar[int]
    ACCEPTANCE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    TOP_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    NEXT_ROUND_FIELD_NUMBER: _ClassVar[int]
    ROUNDS_FIELD_NUMBER: _ClassVar[int]
    FURTHER_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_ACCEPTANCE_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    COURSE_FIELD_NUMBER: _ClassVar[int]
    context: _common_pb2.Context
    sampling: _common_pb2.Sampling
    draft: _common_pb2.Draft
    acceptance: str
    state: bytes
    round: int
    top_logprobs: int
    next_round: NextRound
    rounds: int
    further: int
    expected_acceptance: float
    plan: _common_pb2.DraftPlan
    course: Course
    def __init__(self, context: _Optional[_Union[_common_pb2.Context, _Mapping]] = ..., sampling: _Optional[_Union[_common_pb2.Sampling, _Mapping]] = ..., draft: _Optional[_Union[_common_pb2.Draft, _Mapping]] = ..., acceptance: _Optional[str] = ..., state: _Optional[bytes] = ..., round: _Optional[int] = ..., top_logprobs: _Optional[int] = ..., next_round: _Optional[_Union[NextRound, str]] = ..., rounds: _Optional[int] = ..., further: _Optional[int] = ..., expected_acceptance: _Optional[float] = ..., plan: _Optional[_Union[_common_pb2.DraftPlan, _Mapping]] = ..., course: _Optional[_Union[Course, _Mapping]] = ...) -> None: ...

class Course(_message.Message):
    __slots__ = ("stopping", "max_candidates", "limit", "rounds", "costs", "copying")
    STOPPING_FIELD_NUMBER: _ClassVar[int]
    MAX_CANDIDATES_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    ROUNDS_FIELD_NUMBER: _ClassVar[int]
    COSTS_FIELD_NUMBER: _ClassVar[int]
    COPYING_FIELD_NUMBER: _ClassVar[int]
    stopping: str
    max_candidates: int
    limit: int
    rounds: int
    costs: _common_pb2.CostProfile
    copying: Copying
    def __init__(self, stopping: _Optional[str] = ..., max_candidates: _Optional[int] = ..., limit: _Optional[int] = ..., rounds: _Optional[int] = ..., costs: _Optional[_Union[_common_pb2.CostProfile, _Mapping]] = ..., copying: _Optional[_Union[Copying, _Mapping]] = ...) -> None: ...

class Copying(_message.Message):
    __slots__ = ("eos_ids",)
    EOS_IDS_FIELD_NUMBER: _ClassVar[int]
    eos_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, eos_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class Judgement(_message.Message):
    __slots__ = ("distance", "exact", "accepted", "loss", "floored")
    DISTANCE_FIELD_NUMBER: _ClassVar[int]
    EXACT_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    LOSS_FIELD_NUMBER: _ClassVar[int]
    FLOORED_FIELD_NUMBER: _ClassVar[int]
    distance: float
    exact: bool
    accepted: bool
    loss: float
    floored: bool
    def __init__(self, distance: _Optional[float] = ..., exact: _Optional[bool] = ..., accepted: _Optional[bool] = ..., loss: _Optional[float] = ..., floored: _Optional[bool] = ...) -> None: ...

class VerifyReply(_message.Message):
    __slots__ = ("round", "base", "tokens", "accepted", "emission", "judgements", "timing", "logprobs", "draft", "drafting", "further")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    EMISSION_FIELD_NUMBER: _ClassVar[int]
    JUDGEMENTS_FIELD_NUMBER: _ClassVar[int]
    TIMING_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    DRAFT_FIELD_NUMBER: _ClassVar[int]
    DRAFTING_FIELD_NUMBER: _ClassVar[int]
    FURTHER_FIELD_NUMBER: _ClassVar[int]
    round: int
    base: int
    tokens: bytes
    accepted: int
    emission: Emission
    judgements: _containers.RepeatedCompositeFieldContainer[Judgement]
    timing: _common_pb2.Timing
    logprobs: _containers.RepeatedCompositeFieldContainer[TokenLogprobs]
    draft: _common_pb2.Draft
    drafting: _common_pb2.Timing
    further: _containers.RepeatedCompositeFieldContainer[VerifyReply]
    def __init__(self, round: _Optional[int] = ..., base: _Optional[int] = ..., tokens: _Optional[bytes] = ..., accepted: _Optional[int] = ..., emission: _Optional[_Union[Emission, str]] = ..., judgements: _Optional[_Iterable[_Union[Judgement, _Mapping]]] = ..., timing: _Optional[_Union[_common_pb2.Timing, _Mapping]] = ..., logprobs: _Optional[_Iterable[_Union[TokenLogprobs, _Mapping]]] = ..., draft: _Optional[_Union[_common_pb2.Draft, _Mapping]] = ..., drafting: _Optional[_Union[_common_pb2.Timing, _Mapping]] = ..., further: _Optional[_Iterable[_Union[VerifyReply, _Mapping]]] = ...) -> None: ...

class TokenLogprobs(_message.Message):
    __slots__ = ("logprob", "top_ids", "top")
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    TOP_IDS_FIELD_NUMBER: _ClassVar[int]
    TOP_FIELD_NUMBER: _ClassVar[int]
    logprob: float
    top_ids: _containers.RepeatedScalarFieldContainer[int]
    top: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, logprob: _Optional[float] = ..., top_ids: _Optional[_Iterable[int]] = ..., top: _Optional[_Iterable[float]] = ...) -> None: ...
