"""The bodies of replies, as the OpenAPI document tells of them. They may hold more than is said here."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

FinishReason = Literal["stop", "length"]


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
    relaxed: int
    floored: int
    acceptance_rate: float | None
    mean_acceptance_length: float | None
    threshold: float | None
    stopping: str
    acceptance: str


class AssistantMessage(_Reply):
    role: Literal["assistant"]
    content: str
    refusal: None


class Choice(_Reply):
    index: int
    message: AssistantMessage
    logprobs: None
    finish_reason: FinishReason


class ChatCompletion(_Reply):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[Choice]
    usage: Usage
    speculation: SpeculationRecord


class Delta(_Reply):
    role: Literal["assistant"] | None = None
    content: str | None = None


class ChunkChoice(_Reply):
    index: int
    delta: Delta
    logprobs: None
    finish_reason: FinishReason | None


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
