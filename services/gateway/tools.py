"""Functions that a request offers to the model, and calls of them in its messages."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import orjson
from pydantic import AfterValidator, BeforeValidator, Field

from adasd.core.errors import InvalidRequest
from services.gateway.fields import Strict

MAX_TOOLS = 128
MAX_CALLS = 128
"""Of one message."""
MAX_DEPTH = 32
MAX_ID_CHARACTERS = 256
FUNCTION_NAME = r"^[a-zA-Z0-9_-]{1,64}$"


def _without_null(given: object) -> object:
    """null asks for nothing."""
    return {name: value for name, value in given.items() if value is not None} if isinstance(given, dict) else given


def _checked_schema(schema: dict[str, Any]) -> dict[str, Any]:
    if schema.get("type", "object") != "object":
        raise ValueError("a function's parameters must be a JSON schema of type 'object'")
    return _shallow(schema)


def _shallow(value: dict[str, Any]) -> dict[str, Any]:
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH):
        level = [inner for outer in level for inner in _inside(outer)]
    if level:
        raise ValueError(f"must not be nested deeper than {MAX_DEPTH} levels")
    return value


def _inside(value: object) -> Sequence[object]:
    inner = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
    return [entry for entry in inner if isinstance(entry, dict | list)]


def _parsed(text: object) -> object:
    """Arguments as the object that is written in the text; none are `{}`."""
    if not isinstance(text, str):
        raise ValueError("must be a string that holds a JSON object")
    try:
        arguments = orjson.loads(text or "{}")
    except orjson.JSONDecodeError as error:
        raise ValueError(f"must hold a JSON object: {error}") from None
    if not isinstance(arguments, dict):
        raise ValueError("must hold a JSON object")
    return _shallow(arguments)


FunctionName = Annotated[str, Field(pattern=FUNCTION_NAME)]
CallId = Annotated[str, Field(min_length=1, max_length=MAX_ID_CHARACTERS)]
Schema = Annotated[dict[str, Any], AfterValidator(_checked_schema)]
Arguments = Annotated[dict[str, Any], BeforeValidator(_parsed, json_schema_input_type=str)]


class Function(Strict):
    """A function that the model may call. parameters: a JSON schema; without it there are none."""

    name: FunctionName
    description: str | None = None
    parameters: Schema | None = None
    strict: bool | None = None


class Tool(Strict):
    """As OpenAI wraps a function."""

    type: Literal["function"]
    function: Annotated[Function, BeforeValidator(_without_null)]

    def for_template(self) -> dict[str, Any]:
        """Strictness concerns the gateway, not the model."""
        return {"type": self.type, "function": self.function.model_dump(exclude_none=True, exclude={"strict"})}

    @property
    def text(self) -> str:
        """All that the model may be shown of it."""
        return json.dumps(self.for_template(), ensure_ascii=False)


class CalledFunction(Strict):
    """parsed_arguments: the same once more, as an SDK sends back what it has read of them."""

    name: FunctionName
    arguments: Arguments
    parsed_arguments: object = None


class ToolCall(Strict):
    """A call in an assistant's message. index: as streams have it, without an effect."""

    id: CallId
    type: Literal["function"] = "function"
    function: Annotated[CalledFunction, BeforeValidator(_without_null)]
    index: int | None = None

    def for_template(self) -> dict[str, Any]:
        function = {"name": self.function.name, "arguments": self.function.arguments}
        return {"id": self.id, "type": self.type, "function": function}


class NamedFunction(Strict):
    name: str


class NamedChoice(Strict):
    """The one function that is to be called."""

    type: Literal["function"]
    function: NamedFunction


def _checked_choice(choice: object) -> object:
    """A word, or the one function that an object names."""
    match choice:
        case "none" | "auto" | "required":
            return choice
        case {"type": "function", "function": {"name": str() as name, **inner}, **others} if not (inner or others):
            return NamedChoice(type="function", function=NamedFunction(name=name))
    raise ValueError('must be none, auto, required, or {"type": "function", "function": {"name": ...}}')


ToolChoice = Annotated[
    Literal["none", "auto", "required"] | NamedChoice,
    BeforeValidator(_checked_choice, json_schema_input_type=Literal["none", "auto", "required"] | NamedChoice),
]
Tools = Annotated[list[Tool], Field(max_length=MAX_TOOLS)]
ToolCalls = Annotated[list[Annotated[ToolCall, BeforeValidator(_without_null)]], Field(max_length=MAX_CALLS)]


def check_tools(tools: Sequence[Tool], choice: ToolChoice) -> None:
    """What one field alone does not show. Raises InvalidRequest."""
    places: dict[str, int] = {}
    for place, tool in enumerate(tools):
        name = tool.function.name
        if name in places:
            path = f"tools[{place}].function.name"
            raise InvalidRequest(f"{path}: tools[{places[name]}] is called {name!r} too", path)
        places[name] = place
    if not tools and choice not in ("none", "auto"):
        raise InvalidRequest("tool_choice: there are no tools to choose from", "tool_choice")
    if isinstance(choice, NamedChoice) and choice.function.name not in places:
        raise InvalidRequest(f"tool_choice: {choice.function.name!r} is not among the tools", "tool_choice")


def named_results(messages: Sequence[Any]) -> Mapping[int, str]:
    """The function behind each tool's message, by place. Raises InvalidRequest for one that answers no earlier call."""
    called: dict[str, str] = {}
    results: dict[int, str] = {}
    for place, message in enumerate(messages):
        called |= {call.id: call.function.name for call in message.tool_calls or ()}
        if message.role == "tool":
            if message.tool_call_id not in called:
                path = f"messages[{place}].tool_call_id"
                raise InvalidRequest(f"{path}: no earlier message calls a function by this id", path)
            results[place] = called[message.tool_call_id]
    return results
