"""The messages of a chat, as clients write them and as templates take them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from adasd.core.errors import InvalidRequest
from services.gateway.fields import Content, Strict
from services.gateway.tools import CallId, FunctionName, ToolCalls, named_results


class Message(Strict):
    """One turn. `developer` is OpenAI's newer word for `system`.

    content: only where there are tool_calls it may be absent. tool_calls: of an assistant. tool_call_id: of a tool,
    which call this is the result of, and name: of what function. parsed: the content once more, as an SDK sends back
    what it has read of it.
    """

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Content | None = None
    tool_calls: ToolCalls | None = None
    tool_call_id: CallId | None = None
    name: FunctionName | None = None
    parsed: object = None

    def for_template(self, function: str | None = None) -> dict[str, Any]:
        """What is absent stays absent: templates ask for that. function: whose result this is."""
        role = "system" if self.role == "developer" else self.role
        given = {"content": self.content, "tool_call_id": self.tool_call_id, "name": self.name or function}
        calls = {"tool_calls": [call.for_template() for call in self.tool_calls]} if self.tool_calls else {}
        return {"role": role} | {name: value for name, value in given.items() if value is not None} | calls

    def check(self, path: str) -> None:
        """What belongs to the role. Raises InvalidRequest; path: of the message."""
        if self.content is None and not self.tool_calls:
            raise InvalidRequest(f"{path}.content: Field required", f"{path}.content")
        if self.tool_calls and self.role != "assistant":
            raise InvalidRequest(f"{path}.tool_calls: only assistants call tools", f"{path}.tool_calls")
        if self.name is not None and self.role != "tool":
            raise InvalidRequest(f"{path}.name: only a tool's message has a name here", f"{path}.name")
        if (self.tool_call_id is None) == (self.role == "tool"):
            problem = "tells whose result it is" if self.role == "tool" else "is only for role tool"
            raise InvalidRequest(f"{path}.tool_call_id: {problem}", f"{path}.tool_call_id")


def check_messages(messages: Sequence[Message]) -> None:
    """What belongs together in them. Raises InvalidRequest naming the first message at fault."""
    for place, message in enumerate(messages):
        message.check(f"messages[{place}]")
    named_results(messages)
