"""How many rounds a session takes at once, only the first perhaps with candidates, and what it costs not to.

A message costs the same for one round as for several.
"""

from __future__ import annotations

from adasd.core.averages import Average
from adasd.core.messages import Timing

MOST = 8
"""Rounds: beyond this little is left to be won."""
SHARE = 1 / 40
"""Of the time of a run's passes, what its message may take beside them."""
BURST_SECONDS = 0.75
"""That a reader may wait for tokens which come together: three or four of them at the pace of reading."""
ALONE = 1.5
"""Sessions in an average pass, below which one counts as being by itself."""
HORIZON, LOAD_HORIZON = 64, 16
"""Messages that the averages remember. Load comes and goes faster than what a message costs."""
ROUNDS = 128
"""Of all sessions, of which the share of those in runs is known."""


class RunLength:
    """As long as the messages of this process call for, as short as a reader would have it; a power of two, so that
    runs of different lengths end together too.

    stated: the number where an operator states it; None where it is found out.
    """

    def __init__(self, stated: int | None = None) -> None:
        self._stated = stated
        self._message, self._pass, self._company = Average(), Average(), Average()
        self._in_runs = 0.0

    def __call__(self, foreseen: bool = False) -> int:
        """How many rounds to ask for. foreseen: the text may soon be copied on from, which only a run's first one can;
        a session by itself takes its rounds singly for that, and nobody else does.
        """
        return 1 if foreseen and self._company.value < ALONE else self._length()

    def apart(self) -> float:
        """Seconds that a message costs which comes while others are in a run: its session misses a pass of theirs, or
        that waits for it. By how many rounds are taken in runs; nothing for a session by itself.
        """
        others = min(1.0, max(0.0, self._company.value - 1.0))
        return self._in_runs * others * self._pass.value

    def _length(self) -> int:
        if self._stated is not None:
            return self._stated
        if not self._pass.value:
            return 1
        wanted = self._message.value / (SHARE * self._pass.value)
        bound = min(MOST, BURST_SECONDS / self._pass.value)
        length = 1
        while length < wanted and 2 * length <= bound:
            length *= 2
        return length

    def answered(self, seconds: float, timing: Timing, rounds: int, candidates: int = 0) -> None:
        """So many rounds were, after so long. Where they were begun before they were asked for and went on when they
        were, the model did not wait for the message.
        """
        kept = (1.0 - 1.0 / ROUNDS) ** rounds
        self._in_runs = kept * self._in_runs + (1.0 - kept) * (rounds > 1)
        if candidates or not timing.forwards:
            return
        hidden = 0.0 < timing.ahead < timing.whole
        message = 0.0 if hidden else max(0.0, seconds - timing.whole + timing.ahead)
        self._message = self._message.add(message, HORIZON)
        self._pass = self._pass.add(timing.forward / timing.forwards, HORIZON)
        self._company = self._company.add(timing.sessions / timing.forwards, LOAD_HORIZON)
