"""How models write calls of functions: one format a family, found by what the chat template itself writes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from services.gateway.call_scan import CallScanner, NamedScanner, ObjectScanner


@dataclass(frozen=True, slots=True)
class CallFormat:
    """A call is a JSON object, several are an array of them, or follow one another.

    opening, closing: what stands around it; closing is empty where nothing does. bare: an answer may also begin with
    a call, without the opening. named: a call may also be `name[ARGS]{...}`. arguments: what it calls them. ids: what
    the ids of calls begin with, and their length.
    """

    name: str
    opening: str
    closing: str = ""
    bare: bool = False
    named: bool = False
    arguments: str = "arguments"
    ids: tuple[str, int] = ("call_", 29)

    @property
    def markers(self) -> tuple[str, ...]:
        return (self.opening, self.closing) if self.closing else (self.opening,)

    @property
    def filler(self) -> str:
        """What may stand between calls and means nothing."""
        return " \t\n\r;" if self.bare else " \t\n\r"

    def scanner(self, first: str, names: tuple[str, ...]) -> CallScanner | None:
        """For a call that begins with this character, if one can."""
        if first == "{":
            return ObjectScanner(names)
        return NamedScanner(names) if self.named and (first.isalnum() or first in "_-") else None

    def call_id(self, digest: str) -> str:
        """digest: hexadecimal, at least as long as an id."""
        prefix, length = self.ids
        return prefix + digest[: length - len(prefix)]


HERMES = CallFormat("hermes", "<tool_call>", "</tool_call>")
"""`<tool_call>{"name": ..., "arguments": ...}</tool_call>`: Hermes, Qwen 2.5 and 3, SmolLM2 (an array) and 3."""
MISTRAL = CallFormat("mistral", "[TOOL_CALLS]", named=True, ids=("", 9))
"""`[TOOL_CALLS][{"name": ..., "arguments": ...}]`; its templates take no ids but of nine letters and digits."""
LLAMA = CallFormat("llama", "<|python_tag|>", bare=True, arguments="parameters")
"""`{"name": ..., "parameters": ...}`, Llama 3.1 to 3.3, with `; ` between several."""

FORMATS: Mapping[str, CallFormat] = {entry.name: entry for entry in (HERMES, MISTRAL, LLAMA)}
