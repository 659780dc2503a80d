"""What a stopping rule may know of a text beside what its candidates are worth: how long it is and may become."""

from __future__ import annotations

from dataclasses import dataclass

HOPED_ROUNDS = 32
"""That a text is thought to go on for at least, unless its limit is nearer."""
UNLIMITED = 1 << 62


@dataclass(frozen=True, slots=True)
class Outlook:
    """base: committed ids. generated: of these, by the models. room: candidates that the limit leaves for a block."""

    base: int = 0
    generated: int = 0
    room: int = UNLIMITED

    @property
    def rounds(self) -> int:
        """In which to earn back what is spent now: a text that has come so far is thought to go on for as long."""
        return min(self.room, HOPED_ROUNDS + self.generated)


NOTHING_KNOWN = Outlook()
