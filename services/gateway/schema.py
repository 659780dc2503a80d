"""POST /v1/chat/completions as types: what is honoured. Anything else is refused by name unless it asks for nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

import orjson
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from adasd.core.errors import InvalidRequest
from services.gateway.neutral import MESSAGE_FIELDS, REQUEST_FIELDS, STREAM_FIELDS, Neutral, without_neutral

MAX_STOP_STRINGS = 4
MAX_STOP_CHARACTERS = 1024
MAX_CANDIDATES = 64
MAX_TOP_K = 2**31 - 1
INT64 = 2**63
MAX_NAME_CHARACTERS = 256
MAX_WINDOW_SECONDS = 3600.0


class Strict(BaseModel):
    """What a client sends: of exactly these types, nothing more."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)


StrictT = TypeVar("StrictT", bound=Strict)


class TextPart(Strict):
    """A content part as a client writes it."""

    type: Literal["text"]
    text: str


def _joined_parts(content: object) -> object:
    """Text parts as one text, a line each."""
    if not isinstance(content, list):
        return content
    if not content:
        raise ValueError("a list of content parts must not be empty")
    return "\n".join(_part_text(part) for part in content)


def _part_text(part: object) -> str:
    if not isinstance(part, dict) or part.get("type") != "text":
        raise ValueError("only content parts of type 'text' are supported")
    if part.keys() != {"type", "text"} or not isinstance(part["text"], str):
        raise ValueError("a content part of type 'text' has one more field, the string 'text'")
    return part["text"]


def _checked_stop(stop: object) -> object:
    """One string, or a list of them, as a tuple."""
    stops = [stop] if isinstance(stop, str) else stop
    if not isinstance(stops, list) or not all(isinstance(text, str) for text in stops):
        raise ValueError("must be a string or a list of strings")
    if not 1 <= len(stops) <= MAX_STOP_STRINGS:
        raise ValueError(f"must be 1 to {MAX_STOP_STRINGS} strings, got {len(stops)}")
    if not all(1 <= len(text) <= MAX_STOP_CHARACTERS for text in stops):
        raise ValueError(f"every stop string must have 1 to {MAX_STOP_CHARACTERS} characters")
    return tuple(stops)


StopText = Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARACTERS)]
StopTexts = Annotated[list[StopText], Field(min_length=1, max_length=MAX_STOP_STRINGS)]
TextParts = Annotated[list[TextPart], Field(min_length=1)]
ModelName = Annotated[str, Field(max_length=MAX_NAME_CHARACTERS)]


class Message(Strict):
    """One turn. `developer` is OpenAI's newer word for `system`."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Annotated[str, BeforeValidator(_joined_parts, json_schema_input_type=str | TextParts)]

    def for_template(self) -> dict[str, str]:
        return {"role": "system" if self.role == "developer" else self.role, "content": self.content}


class StreamOptions(Strict):
    include_usage: bool = False


class Speculation(Strict):
    """How to draft and accept; what is left out is the server's choice.

    trace: the stream tells of every round which tokens were accepted, and where its time went.
    scope: of what is learned; by default the session that the request names, else the request.
    """

    stopping: str | None = None
    acceptance: str | None = None
    max_candidates: int | None = Field(default=None, ge=1, le=MAX_CANDIDATES)
    trace: bool = False
    scope: Literal["request", "session"] | None = None


class Resumable(Strict):
    """window_s: seconds that the answer goes on for without its client."""

    window_s: float = Field(ge=0.0, le=MAX_WINDOW_SECONDS)


class ChatRequest(Strict):
    """A request whose every field is honoured. session: whose next turn this is, as `X-Session-Id` named it.

    user, safety_identifier, prompt_cache_key: labels without an effect.
    """

    model: ModelName
    messages: list[Message] = Field(min_length=1)
    stream: bool = False
    stream_options: StreamOptions | None = None
    max_tokens: int | None = Field(default=None, ge=1, lt=INT64)
    max_completion_tokens: int | None = Field(default=None, ge=1, lt=INT64)
    temperature: float = Field(default=1.0, ge=0.0, le=2.0)
    top_p: float = Field(default=1.0, gt=0.0, le=1.0)
    top_k: int = Field(default=0, ge=-1, le=MAX_TOP_K)
    min_p: float = Field(default=0.0, ge=0.0, le=1.0)
    seed: int | None = Field(default=None, ge=-INT64, lt=INT64)
    stop: Annotated[tuple[str, ...], BeforeValidator(_checked_stop, json_schema_input_type=StopText | StopTexts)] = ()
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
    def asked_tokens(self) -> int | None:
        """The longest answer the client asked for, under whichever name."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens


class TokenizeRequest(Strict):
    """Either a text, or messages as of a chat."""

    model: ModelName | None = None
    prompt: str | None = None
    messages: list[Message] | None = Field(default=None, min_length=1)


class DetokenizeRequest(Strict):
    """Token ids, as `/tokenize` gives them."""

    model: ModelName | None = None
    tokens: list[Annotated[int, Field(ge=0)]]


def parse_chat_request(body: bytes) -> ChatRequest:
    """The request in a JSON body. Raises InvalidRequest naming the first parameter at fault."""
    request = validated(ChatRequest, _neutral_removed(json_object(body)))
    both = (request.max_tokens, request.max_completion_tokens)
    if None not in both and both[0] != both[1]:
        raise InvalidRequest("max_tokens and max_completion_tokens are two names of one limit and differ", "max_tokens")
    if request.stream_options is not None and not request.stream:
        raise InvalidRequest("stream_options is only allowed with stream set to true", "stream_options")
    return request


def json_object(body: bytes) -> dict[str, Any]:
    """Raises InvalidRequest if a body is anything else."""
    try:
        parsed = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(f"the body is not valid JSON: {error}") from error
    if not isinstance(parsed, dict):
        raise InvalidRequest("the body must be a JSON object")
    return parsed


def _neutral_removed(parsed: Mapping[str, Any]) -> dict[str, Any]:
    request = without_neutral(parsed, set(ChatRequest.model_fields), REQUEST_FIELDS)
    request |= messages_without_neutral(request)
    parts: tuple[tuple[str, type[Strict], Mapping[str, Neutral]], ...] = (
        ("stream_options", StreamOptions, STREAM_FIELDS),
        ("speculation", Speculation, {}),
        ("resumable", Resumable, {}),
    )
    for name, model, fields in parts:
        if name in request:
            request[name] = _inner(request[name], name, model, fields)
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
    return without_neutral(value, set(model.model_fields), fields, f"{path}.")


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
