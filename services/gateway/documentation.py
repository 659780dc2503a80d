"""The OpenAPI document: what requests may hold, what replies do hold, errors and events included."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from pydantic import BaseModel

from services.gateway.completions_schema import CompletionRequest
from services.gateway.fields import Strict
from services.gateway.messages import Message
from services.gateway.neutral import (
    COMPLETIONS_FIELDS,
    MESSAGE_FIELDS,
    REQUEST_FIELDS,
    REQUIRED,
    STREAM_FIELDS,
    STRUCTURED_FIELDS,
    TOKENIZE_FIELDS,
    Neutral,
)
from services.gateway.replies import ChatCompletionChunk, Error, NotReady, Ready, TextCompletionChunk
from services.gateway.schema import ChatRequest, StreamOptions, TokenizeRequest
from services.gateway.structured import StructuredOutputs

Document = dict[str, Any]

_NEUTRAL: Mapping[type[Strict], Mapping[str, Neutral]] = {
    ChatRequest: REQUEST_FIELDS,
    CompletionRequest: COMPLETIONS_FIELDS,
    Message: MESSAGE_FIELDS,
    StreamOptions: STREAM_FIELDS,
    StructuredOutputs: STRUCTURED_FIELDS,
    TokenizeRequest: TOKENIZE_FIELDS,
}
NOT_NULL = {*REQUIRED, "tokens"}


_ERRORS: Mapping[int, str] = {
    400: "A parameter cannot be honoured; `param` names it.",
    401: "No API key, or one that is not known here.",
    404: "No such model or session, or nothing at this path.",
    408: "The body did not arrive in time.",
    409: "Another request goes on with this session, or it cannot go on here as it was.",
    413: "The body is too large.",
    415: "The body is not declared to be JSON.",
    429: "The key's requests are used up, or the gateway is full.",
    500: "A fault of the service.",
    503: "A part of the service does not answer.",
    504: "A part of the service did not answer in time.",
}
_RETRY_AFTER = {
    "Retry-After": {"schema": {"type": "integer", "minimum": 1}, "description": "Seconds.", "required": True}
}
OF_GATE = (401, 429)
OF_TEXT = (400, *OF_GATE, 404, 408, 413, 415, 500)
OF_CHAT = (*OF_TEXT, 409, 503, 504)
OF_SESSION = (*OF_GATE, 404, 409, 503)
OF_STREAM = (400, *OF_SESSION, 500, 504)


def replies(ok: type[BaseModel] | None, errors: Sequence[int] = ()) -> dict[int | str, Document]:
    """For `responses` of a route."""
    described: dict[int | str, Document] = {status: _error(status) for status in errors}
    return described | ({200: {"model": ok, "description": "OK"}} if ok else {})


def answer_replies(whole: type[BaseModel], chunk: type[BaseModel]) -> dict[int | str, Document]:
    """The answer, whole or as events."""
    documented = replies(whole, OF_CHAT)
    documented[200]["content"] = {"text/event-stream": _events(chunk)}
    return documented


def stream_replies() -> dict[int | str, Document]:
    """The answer as events only."""
    events = {"description": "OK", "content": {"text/event-stream": _events(ChatCompletionChunk, TextCompletionChunk)}}
    return {200: events, **replies(None, OF_STREAM)}


def readiness_replies() -> dict[int | str, Document]:
    return replies(Ready) | {503: {"model": NotReady, "description": "Not ready.", "headers": _RETRY_AFTER}}


def text_replies(errors: Sequence[int] = ()) -> dict[int | str, Document]:
    """Plain text, as Prometheus reads it."""
    text = {"description": "OK", "content": {"text/plain": {"schema": {"type": "string"}}}}
    return {200: text, **replies(None, errors)}


def complete(document: Document, keys_required: bool, open_paths: Collection[str]) -> None:
    """What FastAPI cannot know of the routes: who needs a key; and that parameters cannot fail its own validation."""
    if keys_required:
        document["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    for path, operations in document["paths"].items():
        for operation in operations.values():
            operation["responses"].pop("422", None)
            if keys_required and path not in open_paths:
                operation["security"] = [{"key": []}]


def body_of(kind: type[Strict], names: Sequence[str]) -> Document:
    """For `openapi_extra` of a route that reads its body itself. names: of the served model."""
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": _request(kind, names)}}}}


def _error(status: int) -> Document:
    headers = {"headers": _RETRY_AFTER} if status in (429, 503) else {}
    return {"model": Error, "description": _ERRORS[status], **headers}


def _events(*chunks: type[BaseModel]) -> Document:
    """Each event's `data` is a chunk or, as the last one, an error; a complete stream ends with `[DONE]`."""
    kinds: tuple[type[BaseModel], ...] = (*chunks, Error)
    data = {
        "contentMediaType": "application/json",
        "contentSchema": {"anyOf": [_inlined(kind.model_json_schema()) for kind in kinds]},
    }
    last = {"const": "[DONE]"}
    item = {"type": "object", "properties": {"data": {"anyOf": [data, last]}}, "required": ["data"]}
    return {"schema": {"type": "string"}, "itemSchema": item}


def _request(kind: type[Strict], names: Sequence[str]) -> Document:
    """A request as a client may write it: null, and values that ask for nothing, are allowed where the gateway does."""
    schema = kind.model_json_schema()
    for model, neutral in _NEUTRAL.items():
        _allow(schema if model is kind else schema.get("$defs", {}).get(model.__name__, {}), neutral)
    inlined = _inlined(schema)
    inlined["properties"]["model"] = {"enum": [*names] if "model" in inlined.get("required", ()) else [*names, None]}
    return inlined


def _allow(schema: Document, neutral: Mapping[str, Neutral]) -> None:
    properties = schema.get("properties", {})
    for name, value in properties.items():
        if name not in NOT_NULL:
            properties[name] = {"anyOf": [value, {"type": "null"}]}
    for name, values in neutral.items() if properties else ():
        properties[name] = {"enum": [*values, None], "description": "Not supported: values that ask for nothing."}


def _inlined(schema: Document) -> Document:
    """Without `$ref`: the document's root is not the schema's."""
    definitions = schema.pop("$defs", {})

    def resolved(value: Any) -> Any:
        if isinstance(value, list):
            return [resolved(item) for item in value]
        if not isinstance(value, dict):
            return value
        if "$ref" in value:
            return resolved(definitions[value["$ref"].rpartition("/")[2]])
        return {name: resolved(item) for name, item in value.items()}

    document: Document = resolved(schema)
    return document
