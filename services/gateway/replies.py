"""The bodies of replies, as the OpenAPI document tells of them. They may hold more than is said here."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

FinishReason = Literal["stop", "length"]
ChatFinishReason = Literal["stop", "length", "tool_calls"]


class _Reply(BaseModel):
    model_config = ConfigDict(protected_namespaces=())


class ErrorDetail(_Reply):
    """param: name of the parameter at fault, if one is."""

    message: str
    type: str
    param: str | None
    code: str | None


class Error(_Reply):
    error: ErrorDetail


class Usage(_Reply):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class SpeculationRecord(_Reply):
    """What speculation did for one answer."""

    rounds: int
    drafts: int
    drafted: int
    accepted: int
    copied: int
    relaxed: int
    floored: int
    acceptance_rate: float | None
    mean_acceptance_length: float | None
    threshold: float | None
    stopping: str
    acceptance: str


class SpeculativeDecoding(_Reply):
    """The same in vLLM's words."""

    num_drafts: int
    num_draft_tokens: int
    num_accepted_tokens: int
    acceptance_rate: float | None
    mean_acceptance_length: float | None


class Metrics(_Reply):
    speculative_decoding: SpeculativeDecoding


class TokenLogprob(_Reply):
    """bytes: null for a control token."""

    token: str
    logprob: float
    bytes: list[int] | None


class TokenEntry(TokenLogprob):
    top_logprobs: list[TokenLogprob]


class ChatLogprobs(_Reply):
    """One entry a token, those of control tokens and of a stop string that was cut away included."""

    content: list[TokenEntry]
    refusal: None


class TextLogprobs(_Reply):
    """As `ChatLogprobs`. text_offset: in characters of the text without the prompt."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]] | None
    text_offset: list[int]


class CalledFunction(_Reply):
    """arguments: a JSON object, exactly as the model wrote it; only where its text was cut off it may not be whole."""

    name: str
    arguments: str


class ToolCall(_Reply):
    id: str
    type: Literal["function"]
    function: CalledFunction


class AssistantMessage(_Reply):
    """content: null where there are only calls."""

    role: Literal["assistant"]
    content: str | None
    refusal: None
    tool_calls: list[ToolCall] = []


class Choice(_Reply):
    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: ChatFinishReason


class ChatCompletion(_Reply):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[Choice]
    usage: Usage
    speculation: SpeculationRecord
    metrics: Metrics


class FunctionDelta(_Reply):
    name: str | None = None
    arguments: str


class ToolCallDelta(_Reply):
    """The first of a call has its id and its function's name, and no arguments yet."""

    index: int
    id: str | None = None
    type: Literal["function"] | None = None
    function: FunctionDelta


class Delta(_Reply):
    role: Literal["assistant"] | None = None
    content: str | None = None
    tool_calls: list[ToolCallDelta] = []


class ChunkChoice(_Reply):
    index: int
    delta: Delta
    logprobs: ChatLogprobs | None
    finish_reason: ChatFinishReason | None


class ChatCompletionChunk(_Reply):
    """usage, speculation: of the last chunk, which has no choices, if `stream_options.include_usage` asked for it."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChunkChoice]
    usage: Usage | None = None
    speculation: SpeculationRecord | None = None
    metrics: Metrics | None = None


class TextChoice(_Reply):
    index: int
    text: str
    logprobs: TextLogprobs | None
    finish_reason: FinishReason


class TextCompletion(_Reply):
    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[TextChoice]
    usage: Usage
    speculation: SpeculationRecord
    metrics: Metrics


class TextChunkChoice(_Reply):
    index: int
    text: str
    logprobs: TextLogprobs | None
    finish_reason: FinishReason | None


class TextCompletionChunk(_Reply):
    """As `ChatCompletionChunk`."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[TextChunkChoice]
    usage: Usage | None = None
    speculation: SpeculationRecord | None = None
    metrics: Metrics | None = None


class Density(_Reply):
    """Of JS distances, on the grid beside it; without samples there is none."""

    samples: int
    bandwidth: float | None
    density: list[float] | None


class Densities(_Reply):
    grid: list[float]
    accepted: Density
    rejected: Density


class SessionView(_Reply):
    """status: `interrupted` while nobody runs it. epoch: turns and take-overs. position: as an event's id."""

    id: str
    object: Literal["session"]
    status: Literal["running", "interrupted", "stop", "length", "cancelled"]
    model: str
    created: int
    turn: int
    epoch: int
    position: str
    window_s: float
    usage: Usage
    speculation: SpeculationRecord
    metrics: Metrics
    densities: Densities


class Model(_Reply):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    max_model_len: int | None


class ModelList(_Reply):
    object: Literal["list"]
    data: list[Model]


class Tokens(_Reply):
    count: int
    max_model_len: int | None
    tokens: list[int] = Field(description="Ids, the prompt's first.")


class Text(_Reply):
    prompt: str


class Alive(_Reply):
    status: Literal["alive"]


class Ready(_Reply):
    """problems: what fails, by part; requests go on without it."""

    status: Literal["ready"]
    problems: dict[str, str]


class NotReady(Error):
    problems: dict[str, str]


class Version(_Reply):
    version: str
