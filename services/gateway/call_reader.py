"""Finds calls in the text of an answer as it comes. How the text is cut into pieces makes no difference."""

from __future__ import annotations

from collections.abc import Callable

from services.gateway.boundary import StopFilter
from services.gateway.call_formats import CallFormat
from services.gateway.call_scan import CallScanner
from services.gateway.json_scan import WHITESPACE, Step
from services.gateway.parts import Part


class CallReader:
    """What may be the beginning of a call is held back until it is known to be one, or else is text as a whole.

    A call is known by the name of a function that there is, and by its arguments beginning. These are told as they
    come, and end where they stop being JSON: what follows is text. Blanks around calls are left out.

    over: nothing more is to come, where only one call is wanted. complete: there are calls, all of them whole.
    """

    def __init__(self, form: CallFormat, names: tuple[str, ...], parallel: bool = True) -> None:
        self.over = False
        self._form = form
        self._names = names
        self._parallel = parallel
        self._state: Callable[[str], None] = self._in_text
        self._filter = StopFilter([form.opening])
        self._parts: list[Part] = []
        self._calls = 0
        self._broken = False
        self._quiet = True  # nothing but fillers since the beginning or the last call
        self._fillers = ""
        self._raw: list[str] = []  # of what may become a call
        self._array = False
        self._scanner: CallScanner | None = None
        self._begun = False
        self._tail = ""

    @property
    def complete(self) -> bool:
        return self._calls > 0 and not self._broken

    def read(self, text: str) -> None:
        for character in text:
            if self.over:
                return
            self._state(character)

    def end(self) -> None:
        """No more text comes."""
        if self._begun:
            self._close_call(whole=False)
        self._say("".join(self._raw) or self._filter.release())
        if self._calls == 0:
            self._append(Part(self._fillers))

    def take(self) -> tuple[Part, ...]:
        """What is known since the last time."""
        taken, self._parts = tuple(self._parts), []
        return taken

    def _in_text(self, character: str) -> None:
        shown, opened = self._filter.feed(character)
        if shown == "{" and self._form.bare and self._quiet:
            self._at_call(character)
        else:
            self._say(shown)
        if opened:
            self._filter = StopFilter([self._form.opening])
            self._raw = [self._form.opening]
            self._state = self._at_call

    def _at_call(self, character: str) -> None:
        """Before a call, or before an array of them."""
        if character in WHITESPACE:
            self._raw.append(character)
        elif character == "[" and not self._array:
            self._raw.append(character)
            self._array = True
        elif (scanner := self._form.scanner(character, self._names)) is not None:
            self._scanner = scanner
            self._state = self._in_call
            self._in_call(character)
        else:
            self._refuse(character)

    def _in_call(self, character: str) -> None:
        assert self._scanner is not None, "a call is scanned"
        step = self._scanner.step(character)
        arguments = self._scanner.take_arguments()
        if arguments:
            self._begin()
            self._append(Part(arguments, self._calls))
        if not self._begun and step is Step.WRONG:
            self._refuse(character)
        elif step is Step.MORE:
            self._raw.extend([] if self._begun else [character])
        else:
            self._close_call(self._scanner.complete)
            if step is Step.WRONG and not self.over:
                self._state(character)

    def _begin(self) -> None:
        if not self._begun:
            assert self._scanner is not None, "a call is scanned"
            self._append(Part("", self._calls, self._scanner.name))
            self._begun, self._raw, self._fillers = True, [], ""

    def _close_call(self, whole: bool) -> None:
        self._calls += 1
        self._broken = self._broken or not whole
        self._begun, self._quiet = False, True
        self._array = self._array and whole
        self._state = self._in_array if self._array else self._after_calls
        self.over = not self._parallel

    def _in_array(self, character: str) -> None:
        if character in WHITESPACE:
            return
        self._array = character == ","
        self._raw = [character] if self._array else []
        self._state = self._at_call if self._array else self._after_calls
        if character not in ",]":
            self._state(character)

    def _after_calls(self, character: str) -> None:
        """Up to what closes them, if that comes at once."""
        self._tail += character
        begun = self._tail.lstrip(WHITESPACE)
        if begun == self._form.closing or not self._form.closing.startswith(begun):
            text = "" if begun and begun == self._form.closing else self._tail
            self._tail, self._state = "", self._in_text
            self.read(text)

    def _refuse(self, character: str) -> None:
        """It is no call after all."""
        raw, self._raw, self._array = "".join(self._raw), [], False
        self._state = self._in_text
        self._say(raw)
        self.read(character)

    def _say(self, text: str) -> None:
        if self._quiet:
            text, self._fillers = self._fillers + text, ""
            if not text.strip(self._form.filler if self._calls else WHITESPACE):
                self._fillers = text
                return
            self._quiet = False
        self._append(Part(text))

    def _append(self, part: Part) -> None:
        if part == Part():
            return
        if self._parts and self._parts[-1].goes_on_with(part):
            part = Part(self._parts.pop().text + part.text, part.call)
        self._parts.append(part)
