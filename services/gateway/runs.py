"""How many rounds a session takes at once, and what it costs not to.

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


class _Pace:
    """Seconds of a round's passes, and of its message beside them."""

    def __init__(self) -> None:
        self.message, self.round = Average(), Average()

    def add(self, message: float, round_: float) -> None:
        self.message, self.round = self.message.add(message, HORIZON), self.round.add(round_, HORIZON)

    def length(self) -> int:
        """As many rounds as the message calls for, as few as a reader would have; one as long as nothing is known."""
        if not self.round.value:
            return 1
        wanted = self.message.value / (SHARE * self.round.value)
        bound = min(MOST, BURST_SECONDS / self.round.value)
        length = 1
        while length < wanted and 2 * length <= bound:
            length *= 2
        return length


class RunLength:
    """As long as the messages of this process call for, as short as a reader would have it; a power of two, so that
    runs of different lengths end together too. `adasd.core.decoding.Runs`.

    stated: the number where an operator states it; None where it is found out.
    """

    def __init__(self, stated: int | None = None) -> None:
        self._stated = stated
        self._plain, self._drafted, self._company = _Pace(), _Pace(), Average()
        self._in_runs = 0.0

    def plain(self, foreseen: bool = False) -> int:
        """How many rounds to ask for, of which the first may have candidates. foreseen: the text may soon be copied on
        from, which only a run's first one can; a session by itself takes its rounds singly for that, nobody else does.
        """
        alone = foreseen and self._company.value < ALONE
        return 1 if alone else self._stated or self._plain.length()

    def drafted(self) -> int:
        """How many rounds to ask for that all have candidates."""
        return self._stated or self._drafted.length()

    def apart(self) -> float:
        """Seconds that a message costs which comes while others are in a run: its session misses a pass of theirs, or
        that waits for it. By how many rounds are taken in runs; nothing for a session by itself.
        """
        others = min(1.0, max(0.0, self._company.value - 1.0))
        return self._in_runs * others * self._plain.round.value

    def answered(self, seconds: float, timing: Timing, rounds: int, candidates: int = 0) -> None:
        """So many rounds were, after so long. Where they were begun before they were asked for and went on when they
        were, the model did not wait for the message.
        """
        self._count(rounds)
        if candidates or not timing.forwards:
            return
        hidden = 0.0 < timing.ahead < timing.whole
        message = 0.0 if hidden else max(0.0, seconds - timing.whole + timing.ahead)
        self._plain.add(message, timing.forward / timing.forwards)
        self._company = self._company.add(timing.sessions / timing.forwards, LOAD_HORIZON)

    def judged(self, seconds: float, drafting: Timing, timing: Timing, rounds: int) -> None:
        """So many rounds were, with candidates of the drafter beside the verifier, that long after it had drafted."""
        if timing.forwards:
            self._drafted.add(max(0.0, seconds - timing.whole), (drafting.whole + timing.whole) / rounds)
            self._company = self._company.add(timing.sessions / timing.forwards, LOAD_HORIZON)

    def _count(self, rounds: int) -> None:
        kept = (1.0 - 1.0 / ROUNDS) ** rounds
        self._in_runs = kept * self._in_runs + (1.0 - kept) * (rounds > 1)
