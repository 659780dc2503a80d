"""The rest of a block, compiled: what comes between two passes of the draft model, so that they follow one another
without a word of Python.

The rules are those of `adasd.core`, compiled as they are written there; rows come of the machine code of `entries`. So
a block is the same to the last bit, however much of it was drafted in one go.
"""

from __future__ import annotations

import ctypes
import math
from typing import NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

from adasd.core import worth
from adasd.core.costs import MAX_ROWS
from adasd.core.drafting import Block, Drafted
from adasd.core.draws import CounterDraws, DrawKey, Purpose
from adasd.core.rows import SPARSE_TOTAL
from adasd.core.types import FloatArray, IntArray, Row
from adasd.core.worth import ENTROPY_NODES
from adasd.kernels import entries
from adasd.kernels.compiled import as_written
from adasd.kernels.positions import row_of
from adasd.kernels.team import FIRST, NEXT, Program, Shared, Step, call, pointer, taken, threads

MOST = MAX_ROWS - 1
"""Candidates of a block."""

STATE, VALUES, ROUNDS, ACCEPTANCE, UNIFORMS, EOS, TOKENS, ENTRIES, FIND, CLOCK, TIME, NUMBERS, POSITION = range(
    FIRST, FIRST + 13
)
"""Places in the order of `_judge`: addresses."""

AGAIN, DISTURBED, TEAM, BEGUN, LENGTH, BOUND, ROOM, WEIGHED, ENDS, PASSES, ENDED, STEPS, STRIDE, ID = range(14)
"""Places in its state: whether another pass comes; whether somebody waits for the device; threads that run the step;
candidates at first, so far, at most by the plan, and at most of which there is room for the next one's pass; whether
they are weighed; how many ids end a text; passes; whether the block is done; steps of the program, and numbers of each
one's order; the id that the next pass reads."""

STANDS, THRESHOLD, MEAN, RATE, DRAFT, FIXED, FORWARD, SINCE = range(8)
"""Places in its values: as of the block and its plan; seconds in passes, and when the last one began."""

HIGHEST = math.nextafter(SPARSE_TOTAL, 0.0)
"""Below the sum of a row's weights; see `draws.inverse_cdf`."""

MONOTONIC = 1
_CLOCK = ctypes.cast(getattr(ctypes.CDLL(None), "clock_gettime", None) or 0, ctypes.c_void_p).value or 0
"""(MONOTONIC, address) of libc, which puts seconds and nanoseconds there."""

_entropy_place = as_written(worth.entropy_place)
_between = as_written(worth.between)
_pays = as_written(worth.pays)


class Followed(NamedTuple):
    """What a run came to, in so many passes and seconds of passes. Every pass read the candidate before it."""

    drafted: Drafted
    passes: int
    seconds: float


class Rest:
    """The step behind a pass that drafts on, and what it is told of a block. For one thread at a time.

    logits: float32 [1, width], the pass's. id: the one that it reads, [1]. Candidates are drawn from rows of at most
    `support` ids of which sampling cuts nothing. columns: int64 [width], the id of each column; None: itself.
    """

    def __init__(self, width: int, support: int, columns: IntArray | None) -> None:
        room = min(support, width)
        self.logits: NDArray[np.float32] = np.empty((1, width), dtype=np.float32)
        self._state, self._values, self._time = np.zeros(ID + 1, np.int64), np.zeros(SINCE + 1), np.zeros(2, np.int64)
        self._rounds, self._acceptance, self._uniforms = np.zeros(MAX_ROWS), np.zeros(ENTROPY_NODES), np.zeros(MOST)
        self._eos, self._tokens, self._sizes = np.zeros((3, MOST), dtype=np.int64)
        self._ids, self._weights = np.zeros((2, MOST, room), dtype=np.int64)
        self._found, self._heat = np.zeros((MOST, 2)), np.ones(1)
        self._columns = None if columns is None else np.ascontiguousarray(columns)
        out = self._found, self._ids, self._weights, self._sizes
        self._entries = entries.ordered(self.logits, self._heat, self._columns, out)
        self.id = self._state[ID:]

    def disturb(self, waiting: bool) -> None:
        """Let no pass begin while somebody waits for the device. From any thread."""
        self._state[DISTURBED] = waiting

    def step(self) -> Step:
        """For a program, its last; POSITION is to be filled in: the address of a number that grows by 1 a pass."""
        arrays = self._state, self._values, self._rounds, self._acceptance, self._uniforms, self._eos, self._tokens
        known = *(array.ctypes.data for array in arrays), self._entries.address, entries.FIND[4].address
        return _judge, (1, *known, _CLOCK, self._time.ctypes.data, 0, 0)

    def follow(self, block: Block, temperature: float, room: int, program: Program) -> Followed:
        """Draft on from where a block of at most MOST stands, whose next row `logits` are: at most `room` candidates.

        Fewer than the block may have where somebody waits, and where logits are no finite numbers.
        """
        self._tell(block, temperature, min(len(block.ids) + room, block.plan.max_candidates))
        program.numbers[-1, NUMBERS] = program.numbers.ctypes.data
        self._state[[TEAM, STEPS, STRIDE]] = threads(), *program.numbers.shape
        program.repeat(len(program.numbers) - 1, self._state)
        return self._followed()

    def _tell(self, block: Block, temperature: float, room: int) -> None:
        plan, draws, state, length = block.plan, block.draws, self._state, len(block.ids)
        assert isinstance(draws, CounterDraws), "others have no such numbers"
        state[[BEGUN, LENGTH, BOUND, ROOM]] = length, length, plan.max_candidates, room
        state[[WEIGHED, ENDS, PASSES, ENDED]] = plan.worth is not None, len(block.eos_ids), -1, False
        self._heat[0], self._eos[: len(block.eos_ids)] = temperature, list(block.eos_ids)
        rows = self._found[length:], self._ids[length:], self._weights[length:], self._sizes[length:]
        places = [entries.FOUND, entries.IDS, entries.WEIGHTS, entries.COUNTS]
        self._entries.numbers[places] = [row.ctypes.data for row in rows]
        self._values[[STANDS, THRESHOLD, FORWARD]] = block.stands, plan.entropy_threshold, 0.0
        for offset in range(length, room):
            self._uniforms[offset] = draws.uniform(DrawKey(block.base, offset, Purpose.DRAFT))
        if plan.worth is not None:
            costs = plan.worth.costs
            self._values[[MEAN, RATE, DRAFT, FIXED]] = plan.worth.mean, plan.worth.rate, costs.draft, costs.fixed
            self._rounds[:], self._acceptance[:] = costs.rounds, plan.worth.acceptance

    def _followed(self) -> Followed:
        state = self._state
        places = range(state[BEGUN], state[LENGTH])
        drafted = Drafted(
            self._tokens[places.start : places.stop].tolist(),
            self._found[places.start : places.stop, 1].tolist(),
            [self._row(place) for place in places],
            float(self._values[STANDS]),
            bool(state[ENDED]),
        )
        return Followed(drafted, int(state[PASSES]), float(self._values[FORWARD]))

    def _row(self, place: int) -> Row:
        count = int(self._sizes[place])
        row = row_of(self._ids[place, :count].copy(), self._weights[place, :count].copy(), count)
        assert row is not None, "its candidate was drawn from it"
        return row


@Shared
def _judge(address: int) -> None:
    """One thread judges, whichever comes first; the others count, so that nobody need begin anew."""
    what = numba.carray(pointer(address), POSITION + 1, np.int64)
    state = numba.carray(pointer(what[STATE]), ID + 1, np.int64)
    if taken(address) % state[TEAM] == 0:
        _go_on(what, state)


@as_written
def _go_on(what: IntArray, state: IntArray) -> None:
    """Whether, and how: with the candidate drawn from the row there is."""
    values = numba.carray(pointer(what[VALUES]), SINCE + 1, np.float64)
    state[PASSES] += 1
    if state[PASSES] > 0:
        values[FORWARD] += _now(what) - values[SINCE]
        numba.carray(pointer(what[POSITION]), 1, np.int64)[0] += 1
    state[AGAIN] = 0
    if _takes(what, state, values) and _wants(what, state, values) and state[DISTURBED] == 0:
        state[AGAIN] = 1
        orders = numba.carray(pointer(what[NUMBERS]), (state[STEPS], state[STRIDE]), np.int64)
        for step in range(state[STEPS] - 1):
            orders[step, NEXT] = 0
        values[SINCE] = _now(what)


@as_written
def _takes(what: IntArray, state: IntArray, values: FloatArray) -> bool:
    """`Block.take` of the row; whether the block may go on after that."""
    order = numba.carray(pointer(what[ENTRIES]), entries.ROOM + 1, np.int64)
    order[NEXT] = 0
    call(what[FIND], (what[ENTRIES],))
    peak, entropy = numba.carray(pointer(order[entries.FOUND]), 2, np.float64)
    if not np.isfinite(peak):  # left to who can say what is wrong
        return False
    state[ENDED] = 1
    if numba.carray(pointer(order[entries.COUNTS]), 1, np.int64)[0] == 0:
        return False
    if state[WEIGHED] != 0 and not _is_worth_it(what, state, values, entropy):
        return False
    token = _draw(order, numba.carray(pointer(what[UNIFORMS]), MOST, np.float64)[state[LENGTH]])
    numba.carray(pointer(what[TOKENS]), MOST, np.int64)[state[LENGTH]] = token
    state[ID] = token
    state[LENGTH] += 1
    _make_room(order)
    eos = numba.carray(pointer(what[EOS]), MOST, np.int64)
    for end in range(state[ENDS]):
        if eos[end] == token:
            return False
    if entropy > values[THRESHOLD]:
        return False
    state[ENDED] = 0
    return True


@as_written
def _is_worth_it(what: IntArray, state: IntArray, values: FloatArray, entropy: float) -> bool:
    """`DraftPlan.standing` and `takes`."""
    acceptance = numba.carray(pointer(what[ACCEPTANCE]), ENTROPY_NODES, np.float64)
    rounds = numba.carray(pointer(what[ROUNDS]), MAX_ROWS, np.float64)
    node, beyond = _entropy_place(entropy)
    values[STANDS] *= _between(acceptance, node, beyond)
    length, spent = state[LENGTH], values[DRAFT]
    if length == 0:
        spent += values[FIXED]
    return _pays(rounds, values[RATE], values[MEAN], length, values[STANDS], spent, state[BOUND])


@as_written
def _wants(what: IntArray, state: IntArray, values: FloatArray) -> bool:
    """`Block.goes_on`, where there is room for it."""
    length, bound = state[LENGTH], state[BOUND]
    if length >= state[ROOM]:
        return False
    if state[WEIGHED] == 0:
        return True
    rounds = numba.carray(pointer(what[ROUNDS]), MAX_ROWS, np.float64)
    return _pays(rounds, values[RATE], values[MEAN], length, values[STANDS] * values[MEAN], 0.0, bound)


@as_written
def _draw(order: IntArray, uniform: float) -> int:
    """`draws.inverse_cdf` of the row there is."""
    count = numba.carray(pointer(order[entries.COUNTS]), 1, np.int64)[0]
    ids = numba.carray(pointer(order[entries.IDS]), count, np.int64)
    weights = numba.carray(pointer(order[entries.WEIGHTS]), count, np.int64)
    mark, total = min(uniform * SPARSE_TOTAL, HIGHEST), 0
    for place in range(count):
        total += weights[place]
        if total > mark:
            return int(ids[place])
    return int(ids[count - 1])


@as_written
def _make_room(order: IntArray) -> None:
    """Have the next row put behind this one."""
    order[entries.FOUND] += 16
    order[entries.COUNTS] += 8
    order[entries.IDS] += 8 * order[entries.ROOM]
    order[entries.WEIGHTS] += 8 * order[entries.ROOM]


@as_written
def _now(what: IntArray) -> float:
    """Seconds of some clock; 0 where there is none."""
    if what[CLOCK] == 0:
        return 0.0
    call(what[CLOCK], (MONOTONIC, what[TIME]))
    time = numba.carray(pointer(what[TIME]), 2, np.int64)
    return float(time[0] + 1e-9 * time[1])
