"""What a round costs here and now, as the rounds themselves show it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np

from adasd.core.averages import UNSEEN, Average
from adasd.core.costs import MAX_ROWS, NOMINAL, CostProfile, isotonic
from adasd.core.types import FloatArray, IntArray

SHORTEST = 1e-9
HORIZON, LEVEL_HORIZON, SHAPE_HORIZON = 64, 16, 256
"""Rounds that an average remembers. Load comes and goes faster than what rows cost relative to one another."""

SURCHARGE, SHARED_SURCHARGE, PACED_SURCHARGE = 1.25, 2.5, 1.5
"""On what copied candidates add to a pass, alone in it, beside others, and beside others where its growth was measured:
long passes are seldom seen and then thought cheap, and where most passes have somebody's copies plain ones are seldom
seen too. Where candidates are nearly free it costs little, where they are dear next to nothing."""
MANY = 16
"""Ids whose reading tells what one costs."""
AGEING_ROUNDS = 8
"""Between two times that all numbers of rows are made to count less."""
HOPE = 0.25
"""By how much a number of rows seen once may turn out cheaper; seen n times, by an n-th of that. Not where passes were
measured before the first request."""
FORGOTTEN = 0.25
"""Weight at which a number of rows counts as never seen."""


@dataclass(frozen=True, slots=True)
class Observation:
    """One round as the gateway saw it, in seconds.

    verify: the target's pass. commit: by which the store held up the next block. drafting: until the candidates were
    there; None if that says nothing. work: of which the drafter's own. steps: in so many passes; 0 where they were not
    the usual ones, because it was catching up. sessions, rows: in the target's pass, whoever's; rows None: this round's
    own. running: known to take turns at one computer, in whichever passes; None where passes do not wait for one
    another. copied: the candidates needed no drafter. served: sessions in the drafter's passes. read: ids that it had
    to read first. way: what held the session up beside the target's pass, the message's way there and back above all;
    None where passes went on meanwhile.
    """

    candidates: int
    verify: float
    commit: float
    drafting: float | None = None
    work: float = 0.0
    steps: int = 0
    sessions: float = 1.0
    rows: int | None = None
    running: float | None = None
    copied: bool = False
    served: float = 1.0
    read: int = 0
    way: float | None = None

    @property
    def drafted(self) -> bool:
        """Whether a drafter worked for it."""
        return self.candidates > 0 and not self.copied


@dataclass(frozen=True, slots=True)
class CostMeter:
    """Costs as they are now. verify starts as the prior's. A drafter never seen costs nothing, so that it is tried;
    where sessions take turns, and all wait for whom it works for, it costs as much of a pass as the prior says. paced:
    the prior is what replicas measured here, not a guess.

    verify = prior * level * shape: the level follows the load, whichever rows show it; the shape outlives it. Both are
    by all rows of a pass. A pass is shared: a block costs what it costs if all its sessions draft alike, for candidates
    that only one of them reckons up delay the others as well. sessions: in a pass, of late. Where they take turns, that
    is how many of them there are, for without a drafter they keep step; sessions that draft come apart, and those
    that are `together` in a pass of theirs wait for the passes of the others. strangers: sessions in a pass beyond
    those known to take turns. draft, served: a step of the drafter's and whom it serves. reading, prompts: an id that
    the drafter catches up with, and one of a prompt that the target reads. way, plain: beside the passes of rounds with
    candidates and without. Busy cores lengthen it for few rows as for many: in `level` it would make plain rounds dear
    that have none of it, and candidates seem cheap beside them.
    """

    prior: CostProfile = NOMINAL
    level: Average = UNSEEN
    shape: Mapping[int, Average] = field(default_factory=dict)
    fixed: Average = UNSEEN
    draft: Average = UNSEEN
    commit: Average = UNSEEN
    sessions: Average = UNSEEN
    together: Average = UNSEEN
    strangers: Average = UNSEEN
    served: Average = UNSEEN
    reading: Average = UNSEEN
    prompts: Average = UNSEEN
    way: Average = UNSEEN
    plain: Average = UNSEEN
    turns: bool = False
    rounds: int = 0
    paced: bool = False

    def after(self, seen: Observation) -> CostMeter:
        """The meter once it has seen another round."""
        sharing = max(1.0, seen.sessions)
        rows = seen.candidates + 1 if seen.rows is None else seen.rows
        meter = self._verified(seen, sharing, grouped(rows))._beside(seen.candidates > 0, seen.way)
        return meter if seen.drafting is None else meter._drafted(seen, seen.drafting)

    def prefilled(self, seconds: float, ids: int) -> CostMeter:
        """The meter once the target has read ids of prompts in that time."""
        return replace(self, prompts=self.prompts.add(seconds / ids, HORIZON)) if ids >= MANY else self

    def _beside(self, speculative: bool, seconds: float | None) -> CostMeter:
        """What such a round lost beside its pass, and one round later than what was known of that."""
        way, plain = self.way.aged(HORIZON), self.plain.aged(HORIZON)
        if seconds is not None and speculative:
            way = self.way.add(seconds, HORIZON)
        elif seconds is not None:
            plain = self.plain.add(seconds, HORIZON)
        return replace(self, way=way, plain=plain)

    def _drafted(self, seen: Observation, seconds: float) -> CostMeter:
        reading = max(0.0, seen.work - seen.candidates * self.draft.otherwise(0.0))
        return replace(
            self,
            fixed=self.fixed.add(max(0.0, seconds - seen.work), HORIZON),
            draft=self.draft.add(seen.work / seen.steps, HORIZON) if seen.steps else self.draft,
            served=self.served.add(max(1.0, seen.served), HORIZON),
            reading=self.reading.add(reading / seen.read, HORIZON) if seen.read >= MANY else self.reading,
        )

    def _verified(self, seen: Observation, sharing: float, rows: int) -> CostMeter:
        """What the pass took, whoever was in it, and one round later than all that was known."""
        horizon, memory, turns = LEVEL_HORIZON * sharing, SHAPE_HORIZON * sharing, seen.running is not None
        apart = turns and seen.drafted
        shapes = self.shape if self.rounds % AGEING_ROUNDS else self._aged(memory / AGEING_ROUNDS)
        level, shape = self._scaled(shapes.get(rows, UNSEEN), rows, seen.verify, sharing)
        return replace(
            self,
            level=level,
            shape={**shapes, rows: shape},
            rounds=self.rounds + 1,
            fixed=self.fixed.aged(HORIZON),
            draft=self.draft.aged(HORIZON),
            commit=self.commit.add(seen.commit, HORIZON),
            sessions=self.sessions.add(max(sharing, seen.running or 0.0), horizon),
            together=self.together.add(sharing, horizon) if apart else self.together.aged(memory),
            strangers=self.strangers.add(max(0.0, sharing - (seen.running or 0.0)), horizon),
            turns=turns,
        )

    def _scaled(self, shape: Average, rows: int, seconds: float, sharing: float) -> tuple[Average, Average]:
        """Level and shape once so many rows, of that shape so far, have taken so long."""
        ratio = max(seconds, SHORTEST) / _stated_once(self.prior, rows)
        comparable = shape.weight > 0.0 or self.level.weight == 0.0
        level = self.level.add(ratio / shape.otherwise(1.0), LEVEL_HORIZON * sharing) if comparable else self.level
        return level, shape.add(ratio / level.value, SHAPE_HORIZON * sharing)

    def _aged(self, memory: float) -> dict[int, Average]:
        aged = ((rows, average.aged(memory)) for rows, average in self.shape.items())
        return {rows: average for rows, average in aged if average.weight > FORGOTTEN}

    def profile(self, apart: float = 0.0, known: int | None = None, together: bool = False) -> CostProfile:
        """The costs now. apart: what a block with candidates costs beyond its passes, which rounds without them, taken
        together, do not, and neither does a block that begins such a run, or one of a drafter whose rounds are taken
        `together` as well: if all sessions draft alike they meet before every pass. known: sessions of now that take
        turns, as far as they are known; None where an average is all that there is.
        """
        usual = self.sessions.otherwise(1.0)
        running = max(1, round(usual if known is None else known + self.strangers.otherwise(0.0)))
        drafting = max(1, round(running * min(1.0, self.together.otherwise(usual) / usual)))
        plain, copied = self.plain.otherwise(0.0), self._copied_table(running)
        longer = max(0.0, self.way.otherwise(plain) - plain)
        way = plain + longer * running / drafting  # who takes turns waits for others' messages as for their passes
        joined = way if running == 1 else plain  # beside others, copies keep step with them
        return CostProfile(
            version="live",
            fixed=self.fixed.otherwise(0.0),
            draft=self._draft(running),
            verify=_dearer(self._verify_table(running, drafting), plain, way + (0.0 if together else apart)),
            commit=self.commit.otherwise(self.prior.commit),
            copied=_dearer(copied, plain, joined + apart),
            reading=self._reading(running),
            joined=_dearer(copied, plain, joined),
        )

    def _draft(self, running: int) -> float:
        """A step. Where sessions take turns all of them wait for it, and that falls on those whom it serves."""
        if not self.turns:
            return self.draft.otherwise(self.prior.draft if self.paced else 0.0)
        step = self.draft.otherwise(self.prior.draft * self.level.otherwise(1.0))
        return step * max(1.0, running / self.served.otherwise(1.0))

    def _reading(self, running: int) -> float:
        """An id. A drafter that computes for itself has read the prompt while the target did."""
        share = self.prior.draft / self.prior.passes[0]
        return running * self.reading.otherwise(share * self.prompts.otherwise(0.0)) if self.turns else 0.0

    def _copied_table(self, running: int) -> tuple[float, ...]:
        """As `verify`, of a block that one session adds to a pass of all: what it adds every one of them waits for.

        Where passes were measured their growth is, as slow as plain ones are now: those of many sessions have so many
        numbers of rows, with pieces of prompts among them, that too few of each are seen to tell what four more add.
        """
        rows = running + np.arange(MAX_ROWS)
        passes = self._passes(rows)
        if running == 1:
            table = passes[0] + SURCHARGE * (passes - passes[0])
        elif self.paced:
            grown = stated(self.prior, rows) / stated(self.prior, rows[:1]) - 1.0
            table = passes[0] * (1.0 + PACED_SURCHARGE * running * grown)
        else:
            table = passes[0] + SHARED_SURCHARGE * running * (passes - passes[0])
        return tuple(np.maximum.accumulate(table).tolist())

    def _verify_table(self, running: int, together: int) -> tuple[float, ...]:
        """By rows of one of the sessions, of so many in a pass once there are candidates."""
        every = np.arange(1, MAX_ROWS + 1) * together
        every[0] = running
        verify = self._passes(every)
        verify[1:] *= running / together
        return tuple(np.maximum.accumulate(verify).tolist())

    def _passes(self, every: IntArray) -> FloatArray:
        """By all rows of all sessions. Between what was seen and beyond it the prior says how they grow, as far as it
        was measured; else what was seen seldom or never is thought cheap, so that it is tried where that could pay.
        """
        level = self.level.otherwise(1.0)
        prior = stated(self.prior, every) * level
        if not self.shape:
            return prior
        rows = np.array(sorted(self.shape))
        seen = [self.shape[r] for r in rows.tolist()]
        expected = stated(self.prior, rows) * level
        hope = 0.0 if self.paced else HOPE
        hopeful = expected * [s.value * (1.0 - hope / max(1.0, s.weight)) for s in seen]
        known = np.array(isotonic(hopeful.tolist(), [s.weight for s in seen]))
        place = np.searchsorted(rows, [grouped(wanted) for wanted in every.tolist()], side="right")
        below, above = np.maximum(place - 1, 0), np.append(known, np.inf)[place]
        grown: FloatArray = np.minimum(known[below] * prior / expected[below], above)
        if self.paced:
            return grown
        proportional = known[0] * every / rows[0]
        return np.where(place == 0, proportional, np.where(place == len(rows), grown, known[below]))


def _dearer(table: tuple[float, ...], first: float, others: float) -> tuple[float, ...]:
    """By so many seconds: the first entry, which has no candidates, and the others."""
    return (table[0] + first, *(entry + others for entry in table[1:]))


def stated(costs: CostProfile, rows: IntArray) -> FloatArray:
    """`costs.verify` of any numbers of rows."""
    table, beyond = np.array(costs.passes), np.maximum(rows - MAX_ROWS, 0)
    seconds: FloatArray = table[np.minimum(rows, MAX_ROWS) - 1] + beyond * (table[-1] - table[-2])
    return seconds


@lru_cache(maxsize=256)
def _stated_once(costs: CostProfile, rows: int) -> float:
    return float(stated(costs, np.array(rows)))


def grouped(rows: int) -> int:
    """Rows that cost about the same as one number: exact up to 16, then eight numbers an octave."""
    if rows <= 16:
        return rows
    step = 1 << (rows.bit_length() - 4)
    return -(-rows // step) * step
