"""Passes that follow one another without a word of Python: what comes behind each of them is compiled, and says whether
there is another one.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

from adasd.core.types import FloatArray, IntArray
from adasd.kernels.compiled import as_written
from adasd.kernels.team import FIRST, NEXT, Program, Shared, Step, call, pointer, taken, threads

STATE, VALUES, CLOCK, TIME, NUMBERS, POSITION, OWN = range(FIRST, FIRST + 7)
"""Places in the order of a step that follows: addresses; from OWN on its own ones."""

AGAIN, DISTURBED, TEAM, PASSES, STEPS, STRIDE, ID, OWN_STATE = range(8)
"""Places in its state: whether another pass comes; whether somebody waits for the device; threads that run the step;
passes; steps of the program, and numbers of each one's order; the id that the next pass reads; from OWN_STATE on its
own."""

FORWARD, NOW, SINCE, OWN_VALUES = range(4)
"""Places in its values: seconds in passes, when the last one ended, and when it began; from OWN_VALUES on its own."""

MONOTONIC = 1
_CLOCK = ctypes.cast(getattr(ctypes.CDLL(None), "clock_gettime", None) or 0, ctypes.c_void_p).value or 0
"""(MONOTONIC, address) of libc, which puts seconds and nanoseconds there."""


class Spent(NamedTuple):
    """Passes of a run, and the seconds in them. Every pass read the token before it."""

    passes: int
    seconds: float


class Follower:
    """The steps behind a pass over one token, its program's last. For one thread at a time.

    logits: float32 [1, width], the pass's. id: the one that it reads, [1]. work: made of `judges` and `goes_on`. own:
    addresses that it is told. state, values: numbers of its own. before: steps between the pass and that.
    """

    def __init__(
        self,
        logits: NDArray[np.float32],
        work: Shared,
        own: Sequence[int],
        state: int,
        values: int = 0,
        before: Sequence[Step] = (),
    ) -> None:
        self.logits = logits
        self._state = np.zeros(OWN_STATE + state, dtype=np.int64)
        self._values = np.zeros(OWN_VALUES + values)
        self._time = np.zeros(2, dtype=np.int64)
        self.id = self._state[ID:]
        common = 1, self._state.ctypes.data, self._values.ctypes.data, _CLOCK, self._time.ctypes.data
        self.steps: list[Step] = [(_end, common), *before, (work, (*common, 0, 0, *own))]

    def disturb(self, waiting: bool) -> None:
        """Let no pass begin while somebody waits for the device. From any thread."""
        self._state[DISTURBED] = waiting

    def run(self, program: Program) -> Spent:
        """Go on from `logits`. program: these steps are its last; at POSITION there is the address of a number that
        grows by 1 a pass.
        """
        program.numbers[-1, NUMBERS] = program.numbers.ctypes.data
        self._state[[TEAM, STEPS, STRIDE]] = threads(), *program.numbers.shape
        self._state[PASSES], self._values[FORWARD] = -1, 0.0
        program.repeat(len(program.numbers) - len(self.steps), self._state)
        return Spent(int(self._state[PASSES]), float(self._values[FORWARD]))


@Shared
def _end(address: int) -> None:
    """A pass has ended: what comes now is none of it."""
    if taken(address) == 0:
        what = numba.carray(pointer(address), TIME + 1, np.int64)
        numba.carray(pointer(what[VALUES]), NOW + 1, np.float64)[NOW] = _now(what)


@as_written
def judges(address: int, what: IntArray, state: IntArray, values: FloatArray) -> bool:
    """Whether this thread is the one that does: the first to come. The others count, so that nobody need begin anew."""
    if taken(address) % state[TEAM]:
        return False
    state[AGAIN] = 0
    state[PASSES] += 1
    if state[PASSES] > 0:
        values[FORWARD] += values[NOW] - values[SINCE]
        numba.carray(pointer(what[POSITION]), 1, np.int64)[0] += 1
    return True


@as_written
def goes_on(what: IntArray, state: IntArray, values: FloatArray, token: int) -> None:
    """With a pass over this token, unless somebody waits."""
    if state[DISTURBED] == 0:
        state[AGAIN], state[ID] = 1, token
        orders = numba.carray(pointer(what[NUMBERS]), (state[STEPS], state[STRIDE]), np.int64)
        for step in range(state[STEPS] - 1):
            orders[step, NEXT] = 0
        values[SINCE] = _now(what)


@as_written
def _now(what: IntArray) -> float:
    """Seconds of some clock; 0 where there is none."""
    if what[CLOCK] == 0:
        return 0.0
    call(what[CLOCK], (MONOTONIC, what[TIME]))
    time = numba.carray(pointer(what[TIME]), 2, np.int64)
    return float(time[0] + 1e-9 * time[1])
