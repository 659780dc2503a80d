"""The rest of a block, compiled: what comes between two passes of the draft model, so that they follow one another
without a word of Python.

The rules are those of `adasd.core`, compiled as they are written there; rows come of the machine code of `entries`. So
a block is the same to the last bit, however much of it was drafted in one go.
"""

from __future__ import annotations

import math

import numba
import numpy as np

from adasd.core import worth
from adasd.core.costs import MAX_ROWS
from adasd.core.drafting import Block, Drafted
from adasd.core.draws import CounterDraws, DrawKey, Purpose
from adasd.core.rows import SPARSE_TOTAL
from adasd.core.types import FloatArray, IntArray, Row
from adasd.core.worth import ENTROPY_NODES
from adasd.kernels import entries
from adasd.kernels.compiled import as_written
from adasd.kernels.follow import OWN, OWN_STATE, OWN_VALUES, STATE, VALUES, Follower, Spent, goes_on, judges
from adasd.kernels.positions import row_of
from adasd.kernels.team import NEXT, Program, Shared, call, pointer

MOST = MAX_ROWS - 1
"""Candidates of a block."""

ROUNDS, ACCEPTANCE, UNIFORMS, EOS, TOKENS, ENTRIES, FIND = range(OWN, OWN + 7)
"""Places in the order: addresses."""

BEGUN, LENGTH, BOUND, ROOM, WEIGHED, ENDS, ENDED = range(OWN_STATE, OWN_STATE + 7)
"""Places in the state: candidates at first, so far, at most by the plan, and at most as far as there is room for passes
over them; whether they are weighed; how many ids end a text; whether the block is done."""

STANDS, THRESHOLD, MEAN, RATE, DRAFT, FIXED = range(OWN_VALUES, OWN_VALUES + 6)
"""Places in the values: as of the block and its plan."""

HIGHEST = math.nextafter(SPARSE_TOTAL, 0.0)
"""Below the sum of a row's weights; see `draws.inverse_cdf`."""

_entropy_place = as_written(worth.entropy_place)
_between = as_written(worth.between)
_pays = as_written(worth.pays)


class Rest(Follower):
    """The rest of a block. Candidates are drawn from rows of at most `support` ids of which sampling cuts nothing.

    width: of the logits. columns: int64 [width], the id of each column; None: itself.
    """

    def __init__(self, width: int, support: int, columns: IntArray | None) -> None:
        room = min(support, width)
        self._rounds, self._acceptance, self._uniforms = np.zeros(MAX_ROWS), np.zeros(ENTROPY_NODES), np.zeros(MOST)
        self._eos, self._tokens, self._sizes = np.zeros((3, MOST), dtype=np.int64)
        self._ids, self._weights = np.zeros((2, MOST, room), dtype=np.int64)
        self._found, self._heat = np.zeros((MOST, 2)), np.ones(1)
        self._columns = None if columns is None else np.ascontiguousarray(columns)
        logits = np.empty((1, width), dtype=np.float32)
        self._entries = entries.ordered(logits, self._heat, self._columns, self._out(0))
        arrays = self._rounds, self._acceptance, self._uniforms, self._eos, self._tokens
        own = [array.ctypes.data for array in arrays]
        super().__init__(logits, _judge, [*own, self._entries.address, entries.FIND[4].address], 7, 6)

    def follow(self, block: Block, temperature: float, room: int, program: Program) -> tuple[Drafted, Spent]:
        """Draft on from where a block of at most MOST stands, whose next row `logits` are: at most `room` candidates.

        Fewer than the block may have where somebody waits, and where logits are no finite numbers.
        """
        self._tell(block, temperature, min(len(block.ids) + room, block.plan.max_candidates))
        spent = self.run(program)
        return self._drafted(), spent

    def _out(self, place: int) -> tuple[FloatArray, IntArray, IntArray, IntArray]:
        """Where the row of this place is put."""
        return self._found[place:], self._ids[place:], self._weights[place:], self._sizes[place:]

    def _tell(self, block: Block, temperature: float, room: int) -> None:
        plan, draws, state, length = block.plan, block.draws, self._state, len(block.ids)
        assert isinstance(draws, CounterDraws), "others have no such numbers"
        state[[BEGUN, LENGTH, BOUND, ROOM]] = length, length, plan.max_candidates, room
        state[[WEIGHED, ENDS, ENDED]] = plan.worth is not None, len(block.eos_ids), False
        self._heat[0], self._eos[: len(block.eos_ids)] = temperature, list(block.eos_ids)
        places = [entries.FOUND, entries.IDS, entries.WEIGHTS, entries.COUNTS]
        self._entries.numbers[places] = [array.ctypes.data for array in self._out(length)]
        self._values[[STANDS, THRESHOLD]] = block.stands, plan.entropy_threshold
        for offset in range(length, room):
            self._uniforms[offset] = draws.uniform(DrawKey(block.base, offset, Purpose.DRAFT))
        if plan.worth is not None:
            costs = plan.worth.costs
            self._values[[MEAN, RATE, DRAFT, FIXED]] = plan.worth.mean, plan.worth.rate, costs.draft, costs.fixed
            self._rounds[:], self._acceptance[:] = costs.rounds, plan.worth.acceptance

    def _drafted(self) -> Drafted:
        state = self._state
        places = slice(state[BEGUN], state[LENGTH])
        ids, entropies = self._tokens[places].tolist(), self._found[places, 1].tolist()
        rows = [self._row(place) for place in range(places.start, places.stop)]
        return Drafted(ids, entropies, rows, float(self._values[STANDS]), bool(state[ENDED]))

    def _row(self, place: int) -> Row:
        count = int(self._sizes[place])
        row = row_of(self._ids[place, :count].copy(), self._weights[place, :count].copy(), count)
        assert row is not None, "its candidate was drawn from it"
        return row


@Shared
def _judge(address: int) -> None:
    what = numba.carray(pointer(address), FIND + 1, np.int64)
    state = numba.carray(pointer(what[STATE]), ENDED + 1, np.int64)
    values = numba.carray(pointer(what[VALUES]), FIXED + 1, np.float64)
    if judges(address, what, state, values) and _takes(what, state, values) and _wants(what, state, values):
        last = numba.carray(pointer(what[TOKENS]), MOST, np.int64)[state[LENGTH] - 1]
        goes_on(what, state, values, last)


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
