"""POST /v1/chat/completions as types: what is honoured. Anything else is refused by name unless it asks for nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar

import orjson
from pydantic import Field, ValidationError

from adasd.core.errors import InvalidRequest
from adasd.core.types import MAX_TOP_LOGPROBS
from services.gateway.fields import Biases, Count, ModelName, Stop, Strict
from services.gateway.messages import Message, check_messages
from services.gateway.neutral import (
    MESSAGE_FIELDS,
    REQUEST_FIELDS,
    STREAM_FIELDS,
    STRUCTURED_FIELDS,
    Neutral,
    without_neutral,
)
from services.gateway.structured import NamedSchema, ResponseFormat, StructuredOutputs, Wanted
from services.gateway.tools import Function, NamedChoice, Tool, ToolChoice, Tools, check_tools

MAX_CANDIDATES = 64
MAX_CHOICES = 8
MAX_TOP_K = 2**31 - 1
MAX_MIN_TOKENS = 2**31 - 1
MAX_REPETITION = 100.0
INT64 = 2**63
MAX_WINDOW_SECONDS = 3600.0

StrictT = TypeVar("StrictT", bound=Strict)
AskedT = TypeVar("AskedT", bound="Asked")


class StreamOptions(Strict):
    """continuous_usage_stats: an extension, usage so far with every chunk."""

    include_usage: bool = False
    continuous_usage_stats: bool = False


class Speculation(Strict):
    """How to draft and accept; what is left out is the server's choice.

    copying: whether candidates may come from the text itself, which `marginal` weighs.
    trace: the stream tells of every round which tokens were accepted, and where its time went.
    scope: of what is learned; by default the session that the request names, else the request.
    """

    stopping: str | None = None
    acceptance: str | None = None
    max_candidates: int | None = Field(default=None, ge=1, le=MAX_CANDIDATES)
    copying: bool | None = None
    trace: bool = False
    scope: Literal["request", "session"] | None = None


class Resumable(Strict):
    """window_s: seconds that the answer goes on for without its client."""

    window_s: float = Field(ge=0.0, le=MAX_WINDOW_SECONDS)


class Asked(Strict):
    """What chats and completions have in common. session: whose next turn this is, as `X-Session-Id` named it.

    user, safety_identifier, prompt_cache_key: labels without an effect.
    """

    model: ModelName
    stream: bool = False
    stream_options: StreamOptions | None = None
    max_tokens: int | None = Field(default=None, ge=1, lt=INT64)
    min_tokens: Count = Field(default=0, ge=0, le=MAX_MIN_TOKENS)
    ignore_eos: bool = False
    n: Count = Field(default=1, ge=1, le=MAX_CHOICES)
    temperature: float = Field(default=1.0, ge=0.0, le=2.0)
    top_p: float = Field(default=1.0, gt=0.0, le=1.0)
    top_k: int = Field(default=0, ge=-1, le=MAX_TOP_K)
    min_p: float = Field(default=0.0, ge=0.0, le=1.0)
    frequency_penalty: float = Field(default=0.0, ge=-2.0, le=2.0)
    presence_penalty: float = Field(default=0.0, ge=-2.0, le=2.0)
    repetition_penalty: float = Field(default=1.0, gt=0.0, le=MAX_REPETITION)
    logit_bias: Biases = ()
    seed: int | None = Field(default=None, ge=-INT64, lt=INT64)
    stop: Stop = ()
    structured_outputs: StructuredOutputs | None = None
    speculation: Speculation = Speculation()
    session: str | None = Field(default=None, pattern="^[0-9a-f]{32}$")
    resumable: Resumable | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def continuous_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.continuous_usage_stats

    @property
    def asked_tokens(self) -> int | None:
        """The longest answer the client asked for, under whichever name."""
        return self.max_tokens

    @property
    def wanted_logprobs(self) -> int | None:
        """Of how many of the likeliest ids each token's entry tells; None wants no entries."""
        return None

    @property
    def wanted_grammar(self) -> Wanted | None:
        """What the text must be; None is any text. Raises InvalidRequest."""
        return None if self.structured_outputs is None else self.structured_outputs.wanted()


class ChatRequest(Asked):
    """A chat whose every field is honoured."""

    messages: list[Message] = Field(min_length=1)
    tools: Tools = []  # noqa: RUF012 - pydantic copies it
    tool_choice: ToolChoice = "auto"
    parallel_tool_calls: bool = True
    max_completion_tokens: int | None = Field(default=None, ge=1, lt=INT64)
    logprobs: bool = False
    top_logprobs: Count = Field(default=0, ge=0, le=MAX_TOP_LOGPROBS)
    response_format: ResponseFormat | None = None

    @property
    def offered(self) -> Sequence[Tool]:
        """The tools that the model is told of."""
        return () if self.tool_choice == "none" else self.tools

    @property
    def callable(self) -> Sequence[Function]:
        """The functions that it may call."""
        named = self.tool_choice.function.name if isinstance(self.tool_choice, NamedChoice) else None
        return [tool.function for tool in self.offered if named in (None, tool.function.name)]

    @property
    def must_call(self) -> bool:
        return self.tool_choice not in ("none", "auto")

    @property
    def calls_follow_schemas(self) -> bool:
        """Whether that is asked for, by a choice or by a function of it."""
        return self.must_call or any(function.strict for function in self.callable)

    @property
    def asked_tokens(self) -> int | None:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def wanted_logprobs(self) -> int | None:
        return self.top_logprobs if self.logprobs else None

    @property
    def wanted_grammar(self) -> Wanted | None:
        by_format = None if self.response_format is None else self.response_format.wanted()
        other = super().wanted_grammar
        if by_format is not None and other is not None:
            raise InvalidRequest("structured_outputs is not supported beside response_format", "structured_outputs")
        return by_format or other


class TokenizeRequest(Strict):
    """Either a text, or messages as of a chat."""

    model: ModelName | None = None
    prompt: str | None = None
    messages: list[Message] | None = Field(default=None, min_length=1)
    tools: Tools = []  # noqa: RUF012 - pydantic copies it


class DetokenizeRequest(Strict):
    """Token ids, as `/tokenize` gives them."""

    model: ModelName | None = None
    tokens: list[Annotated[int, Field(ge=0)]]


def parse_chat_request(body: bytes) -> ChatRequest:
    """The request in a JSON body. Raises InvalidRequest naming the first parameter at fault."""
    given = json_object(body)
    request = parse(ChatRequest, given | messages_without_neutral(given), REQUEST_FIELDS)
    both = (request.max_tokens, request.max_completion_tokens)
    if None not in both and both[0] != both[1]:
        raise InvalidRequest("max_tokens and max_completion_tokens are two names of one limit and differ", "max_tokens")
    if request.top_logprobs and not request.logprobs:
        raise InvalidRequest("top_logprobs is only allowed with logprobs set to true", "top_logprobs")
    check_messages(request.messages)
    check_tools(request.tools, request.tool_choice)
    if request.offered and request.wanted_grammar is not None:
        param = request.wanted_grammar.param.partition(".")[0]
        raise InvalidRequest(f"{param} is not supported beside tools", param)
    if request.calls_follow_schemas:
        _check_end(request)
    return request


def parse(kind: type[AskedT], given: Mapping[str, Any], fields: Mapping[str, Neutral]) -> AskedT:
    """A request of this kind. fields: those that it does not honour. Raises InvalidRequest."""
    request = validated(kind, _neutral_removed(kind, given, fields))
    _check_together(request)
    return request


def _check_together(request: Asked) -> None:
    """What one field alone does not show."""
    if request.stream_options is not None and not request.stream:
        raise InvalidRequest("stream_options is only allowed with stream set to true", "stream_options")
    if request.continuous_usage and not request.include_usage:
        raise InvalidRequest("continuous usage needs include_usage", "stream_options.continuous_usage_stats")
    if request.asked_tokens is not None and request.min_tokens > request.asked_tokens:
        raise InvalidRequest(f"min_tokens must not exceed max_tokens, {request.asked_tokens}", "min_tokens")
    if request.wanted_grammar is not None:
        _check_end(request)
    if request.wanted_logprobs is not None and request.resumable is not None:
        raise InvalidRequest("log-probabilities are not stored: with them an answer is not resumable", "resumable")


def _check_end(request: Asked) -> None:
    """A text with a grammar ends with an EOS, where the grammar does."""
    if request.min_tokens:
        raise InvalidRequest("min_tokens is not supported with a grammar, which says where the text ends", "min_tokens")
    if request.ignore_eos:
        raise InvalidRequest("ignore_eos is not supported with a grammar, which says where the text ends", "ignore_eos")


def json_object(body: bytes) -> dict[str, Any]:
    """Raises InvalidRequest if a body is anything else."""
    try:
        parsed = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(f"the body is not valid JSON: {error}") from error
    if not isinstance(parsed, dict):
        raise InvalidRequest("the body must be a JSON object")
    return parsed


def _neutral_removed(kind: type[Asked], given: Mapping[str, Any], fields: Mapping[str, Neutral]) -> dict[str, Any]:
    request = without_neutral(given, set(kind.model_fields), fields)
    parts: tuple[tuple[str, type[Strict], Mapping[str, Neutral]], ...] = (
        ("stream_options", StreamOptions, STREAM_FIELDS),
        ("speculation", Speculation, {}),
        ("resumable", Resumable, {}),
        ("response_format", ResponseFormat, {}),
        ("response_format.json_schema", NamedSchema, {}),
        ("structured_outputs", StructuredOutputs, STRUCTURED_FIELDS),
    )
    for path, model, inner_fields in parts:
        *outer, name = path.split(".")
        holder = request[outer[0]] if outer and outer[0] in request else {} if outer else request
        if isinstance(holder, dict) and name in holder:
            holder[name] = _inner(holder[name], path, model, inner_fields)
    return request


def messages_without_neutral(request: Mapping[str, Any]) -> dict[str, Any]:
    """`messages`, if the request has a list of them, each without fields that ask for nothing."""
    messages = request.get("messages")
    if not isinstance(messages, list):
        return {}
    places = enumerate(messages)
    return {"messages": [_inner(message, f"messages[{i}]", Message, MESSAGE_FIELDS) for i, message in places]}


def _inner(value: object, path: str, model: type[Strict], fields: Mapping[str, Neutral]) -> object:
    if not isinstance(value, dict):
        return value
    names = {field.alias or name for name, field in model.model_fields.items()}
    return without_neutral(value, names, fields, f"{path}.")


def validated(kind: type[StrictT], request: Mapping[str, Any]) -> StrictT:
    """Raises InvalidRequest naming the first parameter at fault."""
    try:
        return kind.model_validate(request)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        param = _path(first["loc"])
        raise InvalidRequest(f"{param}: {first['msg'].removeprefix('Value error, ')}", param) from error


def _path(location: tuple[int | str, ...]) -> str:
    """`messages[0].content`, as OpenAI names it."""
    parts = [f"[{part}]" if isinstance(part, int) else f".{part}" for part in location]
    return "".join(parts).removeprefix(".")
