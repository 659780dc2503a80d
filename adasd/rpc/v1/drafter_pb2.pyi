from adasd.rpc.v1 import common_pb2 as _common_pb2
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DraftRequest(_message.Message):
    __slots__ = ("context", "sampling", "plan", "round")
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    context: _common_pb2.Context
    sampling: _common_pb2.Sampling
    plan: _common_pb2.DraftPlan
    round: int
    def __init__(self, context: _Optional[_Union[_common_pb2.Context, _Mapping]] = ..., sampling: _Optional[_Union[_common_pb2.Sampling, _Mapping]] = ..., plan: _Optional[_Union[_common_pb2.DraftPlan, _Mapping]] = ..., round: _Optional[int] = ...) -> None: ...

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
