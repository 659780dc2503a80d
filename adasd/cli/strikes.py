"""What a chaos run does to a fleet: kill, pause, restart, take away, and disturb the network between."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random

from adasd.cli.findings import Case, Findings
from adasd.cli.fleet import DRAFTER_WAIT_SECONDS, LEASE_SECONDS, STORE_DEADLINE_SECONDS, Fleet

TARGETS_OWN = ("greedy", "coupled")
"""Rules whose text is the target's own, with or without a drafter."""
PAUSES_SECONDS = (1.5 * LEASE_SECONDS, 4 * LEASE_SECONDS)
PAUSED = 0.25
SHORT_SECONDS = (0.5, 0.7 * STORE_DEADLINE_SECONDS)
LONG_SECONDS = STORE_DEADLINE_SECONDS + 2
GONE_SECONDS = DRAFTER_WAIT_SECONDS + 4
DISTURBED_SECONDS = (1.0, 4.0)
SLOWEST_SECONDS = 0.05
READY_SECONDS = 300.0


class Desk:
    """Hands out cases; while no drafter is there, only those whose text is the target's own."""

    def __init__(self, known: Sequence[Case]) -> None:
        self._known = known
        self._changed = threading.Condition()
        self._alone = False
        self._others = 0

    @contextmanager
    def case(self, random: Random) -> Iterator[Case]:
        """One that may be asked now."""
        with self._changed:
            case = random.choice([one for one in self._known if one.rule in TARGETS_OWN or not self._alone])
            self._others += case.rule not in TARGETS_OWN
        try:
            yield case
        finally:
            with self._changed:
                self._others -= case.rule not in TARGETS_OWN
                self._changed.notify_all()

    @contextmanager
    def without_drafters(self) -> Iterator[None]:
        """Begins once what needs a drafter has ended."""
        with self._changed:
            self._alone = True
            self._changed.wait_for(lambda: self._others == 0)
        try:
            yield
        finally:
            with self._changed:
                self._alone = False


@dataclass(frozen=True, slots=True)
class Striker:
    """What may be struck, and how often, by weight."""

    fleet: Fleet
    random: Random
    findings: Findings
    desk: Desk

    def strike(self) -> None:
        """One, to its end: what was killed is started again, but need not be ready."""
        kinds: list[tuple[float, Callable[[], str]]] = [
            (0.72, self._process),
            (0.16, self._redis),
            (0.04, self.all_drafters),
        ]
        if self.fleet.network is not None:
            kinds.append((0.4, self._wire))
        (strike,) = self.random.choices([kind for _, kind in kinds], [weight for weight, _ in kinds])
        self.findings.strikes[strike()] += 1

    def _process(self) -> str:
        fleet, random = self.fleet, self.random
        name = random.choice([name for name in sorted(fleet.children) if not self._last_drafter(name)])
        service, _, number = name.partition("-")
        if random.random() < PAUSED:
            fleet.pause(name, random.uniform(*PAUSES_SECONDS))
            return f"{service} paused"
        if service == "gateway":
            self.findings.count(fleet.urls[int(number)])  # by the one that goes
        fleet.kill(name)
        fleet.children[name].start()
        return f"{service} killed"

    def _redis(self) -> str:
        redis, random = self.fleet.redis, self.random
        kind = random.choice(("restarted", "killed", "killed", "paused", "away for long"))
        seconds = LONG_SECONDS if kind == "away for long" else random.uniform(*SHORT_SECONDS)
        if kind == "paused":
            with redis.paused():
                time.sleep(seconds)
            return "redis paused"
        if kind == "restarted":
            redis.stop()
        else:
            redis.kill()
            time.sleep(seconds)
        redis.start()
        return f"redis {kind}"

    def all_drafters(self) -> str:
        """The last one too, until seeded requests have stopped waiting for one."""
        drafters = [name for name in self.fleet.children if name.startswith("drafter")]
        with self.desk.without_drafters():
            for name in drafters:
                self.fleet.kill(name)
            time.sleep(GONE_SECONDS)
            for name in drafters:
                self.fleet.children[name].start()
            self.fleet.wait_ready(READY_SECONDS)
        return "all drafters killed"

    def _wire(self) -> str:
        network, random = self.fleet.network, self.random
        assert network is not None, "only what is there can be disturbed"
        name, kind = random.choice(sorted(network.wires)), random.choice(("cut", "slow", "silent"))
        if kind == "cut":
            network.cut(name)
        elif kind == "slow":
            network.slow(name, SLOWEST_SECONDS)
            time.sleep(random.uniform(*DISTURBED_SECONDS))
            network.slow(name, 0.0)
        else:
            network.silence(name)
            time.sleep(random.uniform(*DISTURBED_SECONDS))
            network.restore(name)
        return f"wire {kind}"

    def _last_drafter(self, name: str) -> bool:
        """Whether it is a drafter and no other one is there: without any, seeded texts may be others."""
        return name.startswith("drafter") and not any(
            self.fleet.serves(other) for other in self.fleet.children if other.startswith("drafter") and other != name
        )
