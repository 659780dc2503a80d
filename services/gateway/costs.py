"""What a round costs in this deployment, as its operator states it and as this process sees it; what it earns."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import orjson

from adasd.core.adaptive import AcceptanceState
from adasd.core.costs import NOMINAL, CostProfile, CostSource, paced, stated_profile
from adasd.core.decoding import Round
from adasd.core.errors import InvalidRequest
from adasd.core.experience import Experience
from adasd.core.messages import ModelInfo, Timing
from adasd.core.metering import CostMeter, Observation
from services.gateway.runs import RunLength

logger = logging.getLogger(__name__)

SETTING = "cost_profile"
REFRESH_ROUNDS, REFRESH_SECONDS = 16, 0.1


def load_profile(path: Path | None) -> CostProfile:
    """The profile in a JSON file; the nominal one without a file. Raises InvalidRequest naming the setting."""
    if path is None:
        return NOMINAL
    try:
        figures = orjson.loads(path.read_bytes())
    except (OSError, orjson.JSONDecodeError) as error:
        raise InvalidRequest(f"{SETTING} {path}: {error}", SETTING) from error
    if not isinstance(figures, dict):
        raise InvalidRequest(f"{SETTING} {path}: must be a JSON object", SETTING)
    try:
        return stated_profile(figures)
    except InvalidRequest as error:
        raise InvalidRequest(f"{SETTING} {path}: {error}", SETTING) from error


class LiveCosts:
    """The costs of now, from the rounds of all generations of this process.

    prior: the stated ones, where they start from; nominal ones give way to what is `told`. shared_cores: drafter and
    verifier compute on the same ones, so that while one has its turn the sessions of the other wait. runs: how many
    rounds without candidates are taken at once.

    Many streams weigh the same costs: they are worked out once in REFRESH_ROUNDS of theirs, and once in
    REFRESH_SECONDS. What rounds took is put down when it comes, and reckoned with once no block waits for that. On
    shared cores a load that comes or goes counts from the next block on: rounds that show it would come too late for
    sixteen sessions that begin at once, each with a prompt for the drafter to read while all others wait.
    """

    def __init__(self, prior: CostProfile = NOMINAL, shared_cores: bool = False, runs: RunLength | None = None) -> None:
        self.prior, self.shared_cores, self.runs = prior, shared_cores, runs or RunLength()
        self._meter = CostMeter(prior)
        self._profile = self._meter.profile()
        self._seen: list[Observation] = []
        self._added, self._due = 0, 0.0
        self.running, self.runs_ahead, self.beside = 0, False, False
        self._load = 0  # sessions for which the profile was worked out
        self._since_drafts = 0  # rounds, whoever's

    def told(self, target: ModelInfo | None, draft: ModelInfo | None) -> None:
        """What passes took where the models run, before the first request: better than a guess, no better than what an
        operator states or rounds have shown. And whether the target's are begun ahead, and the drafter is beside it.
        """
        self.runs_ahead = target is not None and target.runs_ahead
        self.beside = bool(target and draft and target.drafts and target.drafts == draft.weights_fingerprint)
        if self.prior is not NOMINAL or self._meter.rounds or not (target and target.passes and draft and draft.passes):
            return
        try:
            self._meter = CostMeter(paced(target.passes, draft.passes), paced=True)
        except InvalidRequest as error:
            logger.warning("what %s and %s took at first is of no use: %s", target.name, draft.name, error)
        self._profile = self._meter.profile()

    @contextmanager
    def session(self) -> Iterator[None]:
        """While one is run here."""
        self.running += 1
        try:
            yield
        finally:
            self.running -= 1

    def prefilled(self, seconds: float, ids: int) -> None:
        self._meter = self._meter.prefilled(seconds, ids)

    @property
    def undisturbed(self) -> bool:
        """Whether nobody drafts: on shared cores that holds up others, until every session has had a round."""
        return not self.shared_cores or self.running <= 1 or self._since_drafts >= self.running

    def add(self, seen: Observation) -> None:
        self._seen.append(seen)
        self._added += 1
        self._since_drafts = 0 if seen.drafted else self._since_drafts + 1

    def digest(self) -> None:
        """Reckon with the rounds that were put down, and work the costs out again if that is due."""
        seen, self._seen = self._seen, []
        for one in seen:
            self._meter = self._meter.after(one)
        if self._added >= REFRESH_ROUNDS or (self._added and time.monotonic() >= self._due):
            self._work_out()

    def _work_out(self) -> None:
        self._load = self.running
        self._profile = self._meter.profile(
            self.runs.apart(), self._load if self.shared_cores else None, together=self.beside
        )
        self._added, self._due = 0, time.monotonic() + REFRESH_SECONDS

    def profile(self) -> CostProfile:
        """A `CostSource`: as last worked out, for a block waits; anew only if sessions have begun or ended since."""
        if self.shared_cores and self._load != self.running:
            self._work_out()
        return self._profile

    def source(self, pinned: bool) -> CostSource:
        """The costs of now, or where they are pinned the stated ones."""
        return (lambda: self.prior) if pinned else self.profile

    def figures(self) -> str:
        """The costs of now as `load_profile` reads them; whoever states them gives them a version of their own."""
        self.digest()
        return orjson.dumps(asdict(self.profile())).decode()


class Lessons:
    """What the sessions of this process have learned about candidates, for those that begin after them."""

    def __init__(self) -> None:
        self._experience = Experience()

    def begin(self) -> AcceptanceState:
        """What a session begins with whose text may depend on others."""
        prospects, self._experience = self._experience.begin()
        return AcceptanceState(prospects=prospects)

    def add(self, session: bytes, step: Round) -> None:
        """A round of such a session."""
        self._experience = self._experience.after(session, step.plan, step.draft, step.verdict)


class RoundWatch:
    """Puts the times of one generation's rounds together; a round is told once it is verified.

    Left out: the first round, a prefill; as steps, the passes of a drafter that was not asked or did not answer the
    round before, because it has ids to catch up with; what a block waits for its pass. Where others draft on the same
    cores, or the pass waits for them, that is their candidates' price, and would make plain rounds look dear.
    """

    def __init__(self, costs: LiveCosts) -> None:
        self._costs = costs
        self._prefill = True
        self._warm = False  # the drafter is as far as the text
        self._drafted: tuple[float, Timing, int] | None = None

    def drafted(self, seconds: float, timing: Timing, candidates: int) -> None:
        """An empty block says nothing: perhaps nobody answered."""
        if candidates:
            self._drafted = (seconds, timing, candidates)

    def judged(self, seconds: float, drafting: Timing, timing: Timing, blocks: Sequence[int]) -> None:
        """Rounds are there that one message brought, whose blocks, of so many candidates, the drafter beside the
        verifier had `drafting` for; all else took `seconds`. The average of them is put down, as a round with
        candidates if any has some: the passes are known by their rows, the steps by their number.
        """
        rounds = len(blocks)
        self._costs.runs.judged(seconds, drafting, timing, rounds)
        candidates, drafting = math.ceil(sum(blocks) / rounds), drafting.part(rounds)
        self.drafted(drafting.whole, drafting, candidates)
        self.verified(seconds / rounds, timing.part(rounds), candidates)

    def verified(self, seconds: float, timing: Timing, candidates: int, rounds: int = 1) -> None:
        """The round's verdict is there, or that of so many. What follows, the next block does not wait for."""
        sessions, rows = _sharing(timing)
        running = float(self._costs.running) if self._costs.shared_cores else None
        copied = candidates > 0 and self._drafted is None
        drafting, work, steps = self._drafting()
        served, read = self._serving()
        self._warm, self._drafted = self._drafted is not None, None
        if self._prefill:
            self._costs.prefilled(timing.forward, timing.tokens)
        else:
            self._costs.runs.answered(seconds, timing, rounds, candidates)
            each = candidates if rounds == 1 else 0  # of a run the average pass is known, and its rows
            verify, way = _told_apart(seconds, timing, rounds, self._hides(timing, each))
            pass_ = sessions, rows, running, copied, served, read, way
            self._costs.add(Observation(each, verify, 0.0, drafting, work, steps, *pass_))
        self._prefill = False

    def _hides(self, timing: Timing, candidates: int) -> bool:
        """Whether a plain round is told without its way there and back, as one among plain ones.

        Where those are begun ahead, it goes on beside the passes, as far as it takes no longer than they do. This one
        may not have been begun ahead, because its session drafts at times, or may have waited for others who draft:
        that is the price of candidates, and would make plain rounds look dear.
        """
        if candidates:
            return False
        return not self._costs.undisturbed or (self._costs.runs_ahead and not timing.ahead)

    def _drafting(self) -> tuple[float | None, float, int]:
        """As an observation has it. Of a drafter that keeps no account all the time is work.

        While a block waits for shared cores they work for others: that costs nobody.
        """
        if self._drafted is None:
            return None, 0.0, 0
        seconds, timing, candidates = self._drafted
        if not timing.forwards:
            return (seconds, seconds, candidates) if self._warm else (None, 0.0, 0)
        work, steps = timing.forward + timing.rules, timing.forwards if self._warm else 0
        return max(work, seconds - timing.queue) if self._costs.shared_cores else seconds, work, steps

    def _serving(self) -> tuple[float, int]:
        """Sessions in the drafter's passes, and the ids that it read in them, if it had to catch up."""
        timing = self._drafted[1] if self._drafted is not None else Timing()
        served = max(1.0, timing.sessions / timing.forwards) if timing.forwards else 1.0
        return served, 0 if self._warm else timing.tokens


def _told_apart(seconds: float, timing: Timing, rounds: int, hides: bool) -> tuple[float, float | None]:
    """The average pass of these rounds, and what the session of one lost beside it, less the wait for the device."""
    held = seconds - min(max(0.0, timing.queue - timing.ahead), seconds)
    if not timing.forwards:  # whoever answers keeps no account
        return held / rounds, None
    work = timing.forward + timing.rules
    return work / max(rounds, timing.forwards), None if hides else max(0.0, held - work) / rounds


def _sharing(timing: Timing) -> tuple[float, int | None]:
    """Sessions and rows of an average pass; a verifier of an earlier release does not tell."""
    if not timing.forwards or not timing.sessions:
        return 1.0, None
    return timing.sessions / timing.forwards, round(timing.tokens / timing.forwards)
