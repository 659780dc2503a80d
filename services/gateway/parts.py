"""What a client is told of an answer, in its smallest units: text, the beginning of a call, more of its arguments."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Part:
    """text: of the content, or of the arguments of that call. name: of the function, where a call begins.

    call: how many calls there are before it in the answer.
    """

    text: str = ""
    call: int | None = None
    name: str | None = None

    def goes_on_with(self, other: Part) -> bool:
        """Whether a client may be told both as one: the beginning of a call stands alone, as OpenAI has it."""
        return self.call == other.call and self.name is None and other.name is None
