"""What a chat template knows of functions, found by asking it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from adasd.core.errors import InvalidRequest
from services.gateway.call_formats import FORMATS, CallFormat
from services.gateway.call_reader import CallReader

_NAME, _ARGUMENT, _RESULT, _ID = "probed_function", "argument 7d1c", "result 5e2b", "probe0000"
_ARGUMENTS = {"probed": _ARGUMENT}
_TOOL = {
    "type": "function",
    "function": {
        "name": _NAME,
        "description": "A probe.",
        "parameters": {"type": "object", "properties": {"probed": {"type": "string", "description": "A probe."}}},
    },
}
_USER = {"role": "user", "content": "probe"}

Message = Mapping[str, Any]
Render = Callable[[Sequence[Message], Sequence[Message] | None], str]
"""Messages and tools to a prompt. Raises InvalidRequest where the template refuses them."""


@dataclass(frozen=True, slots=True)
class Calling:
    """offered: the template shows tools. recalled: it shows calls and results of earlier turns.

    mappings: it takes arguments as objects, not as text. form: how it writes calls; None for none that is known here.
    """

    offered: bool = False
    recalled: bool = False
    mappings: bool = True
    form: CallFormat | None = None

    @classmethod
    def of(cls, render: Render) -> Calling:
        offered = _NAME in _rendered(render, [_USER], [_TOOL])
        for mappings in (True, False):
            text = _rendered(render, _turns(mappings), [_TOOL])
            if _NAME in text and _ARGUMENT in text and _RESULT in text:
                return cls(offered, True, mappings, _form(_rendered(render, [_USER], [_TOOL]), text))
        return cls(offered)

    def chosen(self, parser: str | None) -> Calling:
        """With the parser that an operator names. Raises InvalidRequest where that would be without an effect."""
        if parser is None:
            return self
        if parser not in FORMATS:
            raise InvalidRequest(f"no tool parser {parser!r}; there are {', '.join(FORMATS)}", "tool_parser")
        if not self.offered:
            raise InvalidRequest("tool_parser: the model's chat template knows no tools", "tool_parser")
        return Calling(self.offered, self.recalled, self.mappings, FORMATS[parser])

    def require(self) -> CallFormat:
        """Raises InvalidRequest unless tools can be offered and their calls read."""
        if not self.offered:
            raise InvalidRequest("tools: this model's chat template knows no tools", "tools")
        if self.form is None:
            raise InvalidRequest("tools: this model writes calls in a way that is not known here", "tools")
        return self.form


def _turns(mappings: bool) -> list[Message]:
    arguments = _ARGUMENTS if mappings else json.dumps(_ARGUMENTS)
    call = {"id": _ID, "type": "function", "function": {"name": _NAME, "arguments": arguments}}
    result = {"role": "tool", "tool_call_id": _ID, "name": _NAME, "content": _RESULT}
    return [_USER, {"role": "assistant", "tool_calls": [call]}, result]


def _rendered(render: Render, messages: Sequence[Message], tools: Sequence[Message]) -> str:
    """Empty where the template refuses."""
    try:
        return render(messages, tools)
    except InvalidRequest:
        return ""


def _form(before: str, after: str) -> CallFormat | None:
    """The format that reads the template's own call. before, after: prompts without it, and with it and more."""
    pairs = enumerate(zip(before, after, strict=False))
    common = next((place for place, (one, other) in pairs if one != other), min(len(before), len(after)))
    written = after[common:]
    return next((form for form in FORMATS.values() if _reads(form, written)), None)


def _reads(form: CallFormat, text: str) -> bool:
    reader = CallReader(form, (_NAME,), parallel=False)
    reader.read(text)
    arguments = "".join(part.text for part in reader.take() if part.call is not None)
    return reader.complete and bool(json.loads(arguments) == _ARGUMENTS)
