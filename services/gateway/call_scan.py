"""One call of a function as models write it, a character at a time."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection
from typing import Protocol

from services.gateway.json_scan import WHITESPACE, JsonScanner, Step

ARGUMENTS = ("arguments", "parameters")
"""Names of the same thing: Hermes and Mistral write the one, Llama the other."""


class CallScanner(Protocol):
    """name: of the function, once it is known. complete: whether its arguments are."""

    name: str | None
    complete: bool

    def step(self, character: str) -> Step:
        """WRONG: this is no call, or no longer one. Not to be called after any step but MORE."""
        ...

    def take_arguments(self) -> str:
        """What was written of them and has not been taken yet, exactly; nothing while the name is not known."""
        ...


class ObjectScanner:
    """`{"name": ..., "arguments": {...}}`, the keys in any order; others are passed over.

    names: functions that there are; any other is WRONG. A whole call without arguments has `{}`.
    """

    def __init__(self, names: Collection[str]) -> None:
        self.name: str | None = None
        self.complete = False
        self._names = names
        self._arguments: list[str] = []
        self._state: Callable[[str], Step] = self._open
        self._scanner = JsonScanner()
        self._key = ""
        self._written: list[str] = []  # of the key or value under way
        self._seen: set[str] = set()

    def take_arguments(self) -> str:
        if self.name is None:
            return ""
        taken, self._arguments = "".join(self._arguments), []
        return taken

    def step(self, character: str) -> Step:
        return self._state(character)

    def _go(self, state: Callable[[str], Step]) -> Step:
        self._state = state
        return Step.MORE

    def _open(self, character: str) -> Step:
        return self._go(self._key_or_end) if character == "{" else Step.WRONG

    def _key_or_end(self, character: str) -> Step:
        return self._close() if character == "}" else self._before_key(character)

    def _before_key(self, character: str) -> Step:
        if character in WHITESPACE:
            return Step.MORE
        return self._begin(self._in_key, character) if character == '"' else Step.WRONG

    def _in_key(self, character: str) -> Step:
        step = self._scan(character)
        if step is not Step.DONE:
            return step
        key = json.loads("".join(self._written))
        self._key = "arguments" if key in ARGUMENTS else key
        return Step.WRONG if self._key in self._seen else self._go(self._colon)

    def _colon(self, character: str) -> Step:
        if character in WHITESPACE:
            return Step.MORE
        return self._go(self._before_value) if character == ":" else Step.WRONG

    def _before_value(self, character: str) -> Step:
        if character in WHITESPACE:
            return Step.MORE
        if self._key == "arguments" and character != "{":
            return Step.WRONG
        return self._begin(self._in_value, character)

    def _in_value(self, character: str) -> Step:
        step = self._scan(character)
        if step in (Step.WRONG, Step.MORE):
            return step
        self._seen.add(self._key)
        self.complete = "arguments" in self._seen
        if self._key == "name" and not self._named():
            return Step.WRONG
        return self._after(character) if step is Step.PAST else self._go(self._after)

    def _named(self) -> bool:
        name = json.loads("".join(self._written))
        self.name = name if isinstance(name, str) and name in self._names else None
        return self.name is not None

    def _after(self, character: str) -> Step:
        self._state = self._after
        if character in WHITESPACE:
            return Step.MORE
        if character == "}":
            return self._close()
        return self._go(self._before_key) if character == "," else Step.WRONG

    def _close(self) -> Step:
        if self.name is None:
            return Step.WRONG
        if not self.complete:
            self._arguments.append("{}")
            self.complete = True
        return Step.DONE

    def _begin(self, state: Callable[[str], Step], character: str) -> Step:
        self._scanner, self._written = JsonScanner(), []
        self._state = state
        return state(character)

    def _scan(self, character: str) -> Step:
        step = self._scanner.step(character)
        if step in (Step.MORE, Step.DONE):
            (self._arguments if self._inside_arguments else self._written).append(character)
        return step

    @property
    def _inside_arguments(self) -> bool:
        return self._state == self._in_value and self._key == "arguments"


class NamedScanner:
    """`name[ARGS]{...}`, as Mistral's newer models write it; an id of the call before `[ARGS]` is passed over."""

    _HEAD = re.compile(r"([a-zA-Z0-9_-]+)(\[CALL_ID\][a-zA-Z0-9]*)?(\[ARGS\])?\s*")
    _LONGEST = 256

    def __init__(self, names: Collection[str]) -> None:
        self.name: str | None = None
        self.complete = False
        self._names = names
        self._head = ""
        self._arguments: list[str] = []
        self._scanner = JsonScanner()

    def step(self, character: str) -> Step:
        if self.name is None and character != "{":
            self._head += character
            return Step.MORE if len(self._head) < self._LONGEST and character not in '"}' else Step.WRONG
        if self.name is None and not self._named():
            return Step.WRONG
        step = self._scanner.step(character)
        if step in (Step.MORE, Step.DONE):
            self._arguments.append(character)
        self.complete = step is Step.DONE
        return step

    def take_arguments(self) -> str:
        taken, self._arguments = "".join(self._arguments), []
        return taken

    def _named(self) -> bool:
        head = self._HEAD.fullmatch(self._head)
        self.name = head[1] if head and head[1] in self._names else None
        return self.name is not None
