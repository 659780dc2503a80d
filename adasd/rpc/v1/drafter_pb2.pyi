from adasd.rpc.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DraftPlan(_message.Message):
    __slots__ = ("max_candidates", "entropy_threshold", "coupled", "worth")
    MAX_CANDIDATES_FIELD_NUMBER: _ClassVar[int]
    ENTROPY_THRESHOLD_FIELD_NUMBER: _ClassVar[int]
    COUPLED_FIELD_NUMBER: _ClassVar[int]
    WORTH_FIELD_NUMBER: _ClassVar[int]
    max_candidates: int
    entropy_threshold: float
    coupled: bool
    worth: Worth
    def __init__(self, max_candidates: _Optional[int] = ..., entropy_threshold: _Optional[float] = ..., coupled: _Optional[bool] = ..., worth: _Optional[_Union[Worth, _Mapping]] = ...) -> None: ...

class Worth(_message.Message):
    __slots__ = ("acceptance", "mean", "rate", "costs")
    ACCEPTANCE_FIELD_NUMBER: _ClassVar[int]
    MEAN_FIELD_NUMBER: _ClassVar[int]
    RATE_FIELD_NUMBER: _ClassVar[int]
    COSTS_FIELD_NUMBER: _ClassVar[int]
    acceptance: _containers.RepeatedScalarFieldContainer[float]
    mean: float
    rate: float
    costs: CostProfile
    def __init__(self, acceptance: _Optional[_Iterable[float]] = ..., mean: _Optional[float] = ..., rate: _Optional[float] = ..., costs: _Optional[_Union[CostProfile, _Mapping]] = ...) -> None: ...

class CostProfile(_message.Message):
    __slots__ = ("version", "fixed", "draft", "verify", "commit")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    FIXED_FIELD_NUMBER: _ClassVar[int]
    DRAFT_FIELD_NUMBER: _ClassVar[int]
    VERIFY_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    version: str
    fixed: float
    draft: float
    verify: _containers.RepeatedScalarFieldContainer[float]
    commit: float
    def __init__(self, version: _Optional[str] = ..., fixed: _Optional[float] = ..., draft: _Optional[float] = ..., verify: _Optional[_Iterable[float]] = ..., commit: _Optional[float] = ...) -> None: ...

class DraftRequest(_message.Message):
    __slots__ = ("context", "sampling", "plan", "round")
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    context: _common_pb2.Context
    sampling: _common_pb2.Sampling
    plan: DraftPlan
    round: int
    def __init__(self, context: _Optional[_Union[_common_pb2.Context, _Mapping]] = ..., sampling: _Optional[_Union[_common_pb2.Sampling, _Mapping]] = ..., plan: _Optional[_Union[DraftPlan, _Mapping]] = ..., round: _Optional[int] = ...) -> None: ...

class DraftReply(_message.Message):
    __slots__ = ("round", "base", "draft", "timing")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    DRAFT_FIELD_NUMBER: _ClassVar[int]
    TIMING_FIELD_NUMBER: _ClassVar[int]
    round: int
    base: int
    draft: _common_pb2.Draft
    timing: _common_pb2.Timing
    def __init__(self, round: _Optional[int] = ..., base: _Optional[int] = ..., draft: _Optional[_Union[_common_pb2.Draft, _Mapping]] = ..., timing: _Optional[_Union[_common_pb2.Timing, _Mapping]] = ...) -> None: ...
