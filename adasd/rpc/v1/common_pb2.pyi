from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Context(_message.Message):
    __slots__ = ("session", "base", "prompt_length", "start", "ids", "hash")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LENGTH_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    HASH_FIELD_NUMBER: _ClassVar[int]
    session: bytes
    base: int
    prompt_length: int
    start: int
    ids: bytes
    hash: bytes
    def __init__(self, session: _Optional[bytes] = ..., base: _Optional[int] = ..., prompt_length: _Optional[int] = ..., start: _Optional[int] = ..., ids: _Optional[bytes] = ..., hash: _Optional[bytes] = ...) -> None: ...

class Sampling(_message.Message):
    __slots__ = ("temperature", "top_k", "top_p", "min_p", "seed", "choice", "processing", "ignore_eos")
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    MIN_P_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    CHOICE_FIELD_NUMBER: _ClassVar[int]
    PROCESSING_FIELD_NUMBER: _ClassVar[int]
    IGNORE_EOS_FIELD_NUMBER: _ClassVar[int]
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    seed: int
    choice: int
    processing: Processing
    ignore_eos: bool
    def __init__(self, temperature: _Optional[float] = ..., top_k: _Optional[int] = ..., top_p: _Optional[float] = ..., min_p: _Optional[float] = ..., seed: _Optional[int] = ..., choice: _Optional[int] = ..., processing: _Optional[_Union[Processing, _Mapping]] = ..., ignore_eos: _Optional[bool] = ...) -> None: ...

class Processing(_message.Message):
    __slots__ = ("bias_ids", "biases", "repetition_penalty", "frequency_penalty", "presence_penalty", "min_tokens", "eos_ids", "grammar")
    BIAS_IDS_FIELD_NUMBER: _ClassVar[int]
    BIASES_FIELD_NUMBER: _ClassVar[int]
    REPETITION_PENALTY_FIELD_NUMBER: _ClassVar[int]
    FREQUENCY_PENALTY_FIELD_NUMBER: _ClassVar[int]
    PRESENCE_PENALTY_FIELD_NUMBER: _ClassVar[int]
    MIN_TOKENS_FIELD_NUMBER: _ClassVar[int]
    EOS_IDS_FIELD_NUMBER: _ClassVar[int]
    GRAMMAR_FIELD_NUMBER: _ClassVar[int]
    bias_ids: _containers.RepeatedScalarFieldContainer[int]
    biases: _containers.RepeatedScalarFieldContainer[float]
    repetition_penalty: float
    frequency_penalty: float
    presence_penalty: float
    min_tokens: int
    eos_ids: _containers.RepeatedScalarFieldContainer[int]
    grammar: Grammar
    def __init__(self, bias_ids: _Optional[_Iterable[int]] = ..., biases: _Optional[_Iterable[float]] = ..., repetition_penalty: _Optional[float] = ..., frequency_penalty: _Optional[float] = ..., presence_penalty: _Optional[float] = ..., min_tokens: _Optional[int] = ..., eos_ids: _Optional[_Iterable[int]] = ..., grammar: _Optional[_Union[Grammar, _Mapping]] = ...) -> None: ...

class Grammar(_message.Message):
    __slots__ = ("kind", "source")
    KIND_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    kind: str
    source: str
    def __init__(self, kind: _Optional[str] = ..., source: _Optional[str] = ...) -> None: ...

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
    __slots__ = ("version", "fixed", "draft", "verify", "commit", "copied", "reading", "joined")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    FIXED_FIELD_NUMBER: _ClassVar[int]
    DRAFT_FIELD_NUMBER: _ClassVar[int]
    VERIFY_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    COPIED_FIELD_NUMBER: _ClassVar[int]
    READING_FIELD_NUMBER: _ClassVar[int]
    JOINED_FIELD_NUMBER: _ClassVar[int]
    version: str
    fixed: float
    draft: float
    verify: _containers.RepeatedScalarFieldContainer[float]
    commit: float
    copied: _containers.RepeatedScalarFieldContainer[float]
    reading: float
    joined: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, version: _Optional[str] = ..., fixed: _Optional[float] = ..., draft: _Optional[float] = ..., verify: _Optional[_Iterable[float]] = ..., commit: _Optional[float] = ..., copied: _Optional[_Iterable[float]] = ..., reading: _Optional[float] = ..., joined: _Optional[_Iterable[float]] = ...) -> None: ...

class Draft(_message.Message):
    __slots__ = ("ids", "entropies", "rows", "copied")
    IDS_FIELD_NUMBER: _ClassVar[int]
    ENTROPIES_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    COPIED_FIELD_NUMBER: _ClassVar[int]
    ids: bytes
    entropies: _containers.RepeatedScalarFieldContainer[float]
    rows: _containers.RepeatedScalarFieldContainer[bytes]
    copied: bool
    def __init__(self, ids: _Optional[bytes] = ..., entropies: _Optional[_Iterable[float]] = ..., rows: _Optional[_Iterable[bytes]] = ..., copied: _Optional[bool] = ...) -> None: ...

class Timing(_message.Message):
    __slots__ = ("forwards", "queue", "forward", "rules", "sessions", "tokens", "ahead")
    FORWARDS_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    FORWARD_FIELD_NUMBER: _ClassVar[int]
    RULES_FIELD_NUMBER: _ClassVar[int]
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    AHEAD_FIELD_NUMBER: _ClassVar[int]
    forwards: int
    queue: float
    forward: float
    rules: float
    sessions: int
    tokens: int
    ahead: float
    def __init__(self, forwards: _Optional[int] = ..., queue: _Optional[float] = ..., forward: _Optional[float] = ..., rules: _Optional[float] = ..., sessions: _Optional[int] = ..., tokens: _Optional[int] = ..., ahead: _Optional[float] = ...) -> None: ...

class InfoRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ModelInfo(_message.Message):
    __slots__ = ("name", "vocabulary", "context_length", "eos_ids", "vocabulary_fingerprint", "weights_fingerprint", "support", "protocol", "passes", "runs_ahead", "drafts")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VOCABULARY_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_LENGTH_FIELD_NUMBER: _ClassVar[int]
    EOS_IDS_FIELD_NUMBER: _ClassVar[int]
    VOCABULARY_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    SUPPORT_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    PASSES_FIELD_NUMBER: _ClassVar[int]
    RUNS_AHEAD_FIELD_NUMBER: _ClassVar[int]
    DRAFTS_FIELD_NUMBER: _ClassVar[int]
    name: str
    vocabulary: int
    context_length: int
    eos_ids: _containers.RepeatedScalarFieldContainer[int]
    vocabulary_fingerprint: str
    weights_fingerprint: str
    support: int
    protocol: str
    passes: _containers.RepeatedScalarFieldContainer[float]
    runs_ahead: bool
    drafts: str
    def __init__(self, name: _Optional[str] = ..., vocabulary: _Optional[int] = ..., context_length: _Optional[int] = ..., eos_ids: _Optional[_Iterable[int]] = ..., vocabulary_fingerprint: _Optional[str] = ..., weights_fingerprint: _Optional[str] = ..., support: _Optional[int] = ..., protocol: _Optional[str] = ..., passes: _Optional[_Iterable[float]] = ..., runs_ahead: _Optional[bool] = ..., drafts: _Optional[str] = ...) -> None: ...
