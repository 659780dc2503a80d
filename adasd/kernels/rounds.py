"""Rounds without candidates, compiled: a token of the target's row, and the next pass over it.

Sums and draws are those of `whole` and `drawing`, by the same machine code, so a text is the same however many rounds
were taken at once.
"""

from __future__ import annotations

from collections.abc import Collection

import numba
import numpy as np

from adasd.core.draws import CounterDraws, DrawKey, Purpose
from adasd.core.types import IntArray
from adasd.kernels import drawing, loops, whole
from adasd.kernels.compiled import as_written
from adasd.kernels.follow import OWN, OWN_STATE, OWN_VALUES, STATE, VALUES, Follower, Spent, goes_on, judges
from adasd.kernels.team import ITEMS, NEXT, Program, Shared, call, pointer

MOST = 64
"""Rounds of a run."""

UNIFORMS, EOS, TOKENS, PEAK, DRAW, DRAWN, LOGITS = range(OWN, OWN + 7)
"""Places in the order: addresses."""

LENGTH, LIMIT, ENDS, GREEDY, WIDTH = range(OWN_STATE, OWN_STATE + 5)
"""Places in the state: tokens so far, and at most; how many ids end a text; whether the likeliest is taken; how many
logits there are."""


class Run(Follower):
    """A run of rounds. Tokens are drawn from rows of which sampling cuts nothing, or are the likeliest. width: of the
    logits."""

    def __init__(self, width: int) -> None:
        logits = np.empty((1, width), dtype=np.float32)
        self._uniforms, (self._eos, self._tokens) = np.zeros(MOST), np.zeros((2, MOST), dtype=np.int64)
        self._heat, self._peak, self._blocks = np.ones(1), np.zeros(1), np.zeros((1, loops.parts_of(width)))
        self._token, self._first = np.zeros((2, 1), dtype=np.int64)
        self._draw = drawing.ordered(logits[0], self._heat, self._peak, self._blocks[0], self._uniforms, self._token)
        before = whole.steps(logits, self._heat, self._peak, self._blocks, self._first)
        self._items = [numbers[0] for _, numbers in before]
        arrays = self._uniforms, self._eos, self._tokens, self._peak
        own = *(array.ctypes.data for array in arrays), self._draw.address, drawing.draw_from_all.address
        super().__init__(logits, _judge, [*own, logits.ctypes.data], 5, before=before)

    def follow(
        self,
        base: int,
        limit: int,
        draws: CounterDraws,
        eos_ids: Collection[int],
        temperature: float,
        program: Program,
    ) -> tuple[list[int], Spent]:
        """Tokens of at most `limit` rounds from the one whose row `logits` are, after `base` ids; at most MOST eos_ids.

        Fewer at the end of the text, where somebody waits, and where logits are no finite numbers.
        """
        limit = min(limit, MOST)
        program.numbers[-1 - len(self._items) : -1, ITEMS] = 0 if temperature == 0.0 else self._items
        self._state[[LENGTH, LIMIT, ENDS]] = 0, limit, len(eos_ids)
        self._state[[GREEDY, WIDTH]] = temperature == 0.0, self.logits.shape[1]
        self._heat[0], self._eos[: len(eos_ids)] = temperature or 1.0, list(eos_ids)
        for number in range(limit):
            self._uniforms[number] = draws.uniform(DrawKey(base + number, 0, Purpose.EMIT))
        spent = self.run(program)
        return self._tokens[: self._state[LENGTH]].tolist(), spent


@Shared
def _judge(address: int) -> None:
    what = numba.carray(pointer(address), LOGITS + 1, np.int64)
    state = numba.carray(pointer(what[STATE]), WIDTH + 1, np.int64)
    values = numba.carray(pointer(what[VALUES]), OWN_VALUES, np.float64)
    if judges(address, what, state, values):
        token = _likeliest(what, state) if state[GREEDY] != 0 else _drawn(what, state)
        if token >= 0 and _takes(what, state, token):
            goes_on(what, state, values, token)


@as_written
def _takes(what: IntArray, state: IntArray, token: int) -> bool:
    """Put a round's token down; whether another round comes."""
    numba.carray(pointer(what[TOKENS]), MOST, np.int64)[state[LENGTH]] = token
    state[LENGTH] += 1
    eos = numba.carray(pointer(what[EOS]), MOST, np.int64)
    for end in range(state[ENDS]):
        if eos[end] == token:
            return False
    return bool(state[LENGTH] < state[LIMIT])


@as_written
def _drawn(what: IntArray, state: IntArray) -> int:
    """A token of the row; -1 where that is left to who can say what is wrong with it."""
    if not np.isfinite(numba.carray(pointer(what[PEAK]), 1, np.float64)[0]):
        return -1
    draw = numba.carray(pointer(what[DRAW]), drawing.TOKEN + 1, np.int64)
    draw[NEXT] = 0
    draw[drawing.UNIFORM] = what[UNIFORMS] + 8 * state[LENGTH]
    call(what[DRAWN], (what[DRAW],))
    return int(numba.carray(pointer(draw[drawing.TOKEN]), 1, np.int64)[0])


@as_written
def _likeliest(what: IntArray, state: IntArray) -> int:
    """The lowest id of the largest logit; -1 where one is no finite number that a peak may be."""
    row = numba.carray(pointer(what[LOGITS]), state[WIDTH], np.float32)
    best, numbers = 0, 0
    for place in range(len(row)):
        numbers += row[place] == row[place]
        if row[place] > row[best]:
            best = place
    return best if numbers == len(row) and np.isfinite(row[best]) else -1
