"""JSON as it comes, a character at a time: whether it is JSON so far, and where its value ends (RFC 8259)."""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import Enum, auto

WHITESPACE = " \t\n\r"
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_LITERALS = {"t": "true", "f": "false", "n": "null"}
_HEX_DIGITS = 4


class Step(Enum):
    """MORE: the value goes on. DONE: it ends with this character. PAST: it ended before it. WRONG: this is no JSON."""

    MORE = auto()
    DONE = auto()
    PAST = auto()
    WRONG = auto()


class JsonScanner:
    """One value. Not to be fed after any step but MORE."""

    def __init__(self) -> None:
        self._state: Callable[[str], Step] = self._value
        self._closers: list[str] = []  # that are owed, the innermost last
        self._in_key = False
        self._word = ""  # a number so far, or what is left of a literal
        self._digits = 0

    def step(self, character: str) -> Step:
        return self._state(character)

    def _go(self, state: Callable[[str], Step]) -> Step:
        self._state = state
        return Step.MORE

    def _value(self, character: str) -> Step:
        if character in WHITESPACE:
            return Step.MORE
        if character in "{[":
            self._closers.append("}" if character == "{" else "]")
            return self._go(self._key_or_end if character == "{" else self._value_or_end)
        if character == '"':
            self._in_key = False
            return self._go(self._string)
        self._word = _LITERALS.get(character, character)[1:] if character in _LITERALS else character
        if character in _LITERALS:
            return self._go(self._literal)
        return self._go(self._number) if character in "-0123456789" else Step.WRONG

    def _value_or_end(self, character: str) -> Step:
        return self._close() if character == "]" else self._value(character)

    def _key_or_end(self, character: str) -> Step:
        return self._close() if character == "}" else self._key(character)

    def _key(self, character: str) -> Step:
        if character in WHITESPACE:
            return Step.MORE
        self._in_key = True
        return self._go(self._string) if character == '"' else Step.WRONG

    def _string(self, character: str) -> Step:
        if character == '"':
            return self._go(self._colon) if self._in_key else self._ended()
        if character == "\\":
            return self._go(self._escape)
        return Step.WRONG if character < " " else Step.MORE

    def _escape(self, character: str) -> Step:
        self._digits = _HEX_DIGITS
        if character == "u":
            return self._go(self._hex)
        return self._go(self._string) if character in '"\\/bfnrt' else Step.WRONG

    def _hex(self, character: str) -> Step:
        self._digits -= 1
        if character not in "0123456789abcdefABCDEF":
            return Step.WRONG
        return Step.MORE if self._digits else self._go(self._string)

    def _colon(self, character: str) -> Step:
        if character in WHITESPACE:
            return Step.MORE
        return self._go(self._value) if character == ":" else Step.WRONG

    def _number(self, character: str) -> Step:
        if character in "+-.eE0123456789":
            self._word += character
            return Step.MORE
        if not _NUMBER.fullmatch(self._word):
            return Step.WRONG
        return self._after(character) if self._ended() is Step.MORE else Step.PAST

    def _literal(self, character: str) -> Step:
        if character != self._word[0]:
            return Step.WRONG
        self._word = self._word[1:]
        return Step.MORE if self._word else self._ended()

    def _after(self, character: str) -> Step:
        if character in WHITESPACE:
            return Step.MORE
        if character == self._closers[-1]:
            return self._close()
        if character != ",":
            return Step.WRONG
        return self._go(self._key if self._closers[-1] == "}" else self._value)

    def _close(self) -> Step:
        self._closers.pop()
        return self._ended()

    def _ended(self) -> Step:
        return self._go(self._after) if self._closers else Step.DONE
