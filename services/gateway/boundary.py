"""Where a text ends and what of it may be shown: a pure function of the committed ids and the request."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from adasd.core.types import FinishReason
from services.gateway.detokenizer import Detokenizer
from services.gateway.parts import Part


class StopString:
    """Finds one stop string in a text that arrives in pieces (Knuth, Morris, Pratt 1977)."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.matched = 0  # length of the longest suffix of the text so far that begins the stop string
        self._borders = _borders(text)

    def step(self, character: str) -> bool:
        """Whether the stop string is complete with this character. Not to be called again after that."""
        while self.matched and self.text[self.matched] != character:
            self.matched = self._borders[self.matched - 1]
        if self.text[self.matched] == character:
            self.matched += 1
        return self.matched == len(self.text)


def _borders(text: str) -> list[int]:
    """For every prefix of `text`, the length of its longest proper prefix that is also its suffix."""
    borders = [0] * len(text)
    length = 0
    for i in range(1, len(text)):
        while length and text[length] != text[i]:
            length = borders[length - 1]
        length += text[length] == text[i]
        borders[i] = length
    return borders


class StopFilter:
    """Lets text through, but for a suffix that may yet become a stop string, and all text from a stop string on.

    Of several stop strings the one completed first counts, of those the longest; how the text is cut into pieces
    makes no difference.
    """

    def __init__(self, stop: Sequence[str]) -> None:
        self._stop = [StopString(text) for text in stop]
        self._held = ""

    def feed(self, piece: str) -> tuple[str, bool]:
        """What may be shown now, and whether a stop string is complete."""
        for end, character in enumerate(piece, 1):
            complete = [stop for stop in self._stop if stop.step(character)]
            if complete:
                text, self._held = self._held + piece[:end], ""
                return text[: len(text) - max(len(stop.text) for stop in complete)], True
        text = self._held + piece
        shown = len(text) - max((stop.matched for stop in self._stop), default=0)
        self._held = text[shown:]
        return text[:shown], False

    def release(self) -> str:
        """What was held back, once no more text comes."""
        held, self._held = self._held, ""
        return held


class Boundary:
    """Cuts each block at the earliest of EOS, stop string and max_tokens, and keeps the text that may be shown.

    An EOS is a committed token without text; the token that completes a stop string is committed too.
    max_tokens: at least 1.
    """

    def __init__(
        self, eos_ids: Collection[int], stop: Sequence[str], max_tokens: int, detokenizer: Detokenizer
    ) -> None:
        self._eos_ids = eos_ids
        self._remaining = max_tokens
        self._detokenizer = detokenizer
        self._filter = StopFilter(stop)
        self._pieces: list[str] = []

    def cut(self, tokens: Sequence[int]) -> tuple[int, FinishReason | None]:
        """How many of these next tokens stand, and why the text ends there, if it does."""
        for length, token in enumerate(tokens, 1):
            finish = self._advance(token)
            if finish is not None:
                return length, finish
        return len(tokens), None

    def take_pieces(self) -> tuple[str, ...]:
        """What may be shown and was not taken yet: one piece a token that stands, empty where text is held back."""
        pieces = tuple(self._pieces)
        self._pieces.clear()
        return pieces

    def take_parts(self, pieces: Sequence[str]) -> tuple[tuple[Part, ...], ...]:
        """What a client is told of each of these tokens, as `take_pieces` gave them."""
        return tuple((Part(piece),) if piece else () for piece in pieces)

    def told_reason(self, finish: FinishReason) -> str:
        """Why the text ended, as its client is told."""
        return finish

    def _advance(self, token: int) -> FinishReason | None:
        self._remaining -= 1
        self._pieces.append("")
        ended = token in self._eos_ids
        if not ended and self._show(self._detokenizer.push(token)):
            return "stop"
        if not ended and self._remaining:
            return None
        stopped = self._show(self._detokenizer.flush())
        self._pieces[-1] += self._filter.release()
        return "stop" if ended or stopped else "length"

    def _show(self, text: str) -> bool:
        """Let through what may be shown; whether a stop string is complete."""
        shown, stopped = self._filter.feed(text)
        self._pieces[-1] += shown
        return stopped
