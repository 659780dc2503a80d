"""What a chaos run found: every text as it was without trouble, or what differed; and what the trouble cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import httpx

from adasd.bench.statistics import percentile
from adasd.cli.resuming import Told

ATTEMPTS, OUTAGES, AWAY = (
    "adasd_gateway_verifier_failures_total",
    "adasd_gateway_store_outages_total",
    "adasd_gateway_store_outage_seconds_total",
)
STORE_AWAY = "the session store has not answered"


@dataclass(frozen=True, slots=True)
class Case:
    """One request, and what came of it when nothing went wrong."""

    rule: str
    body: dict[str, Any]
    expected: Told


@dataclass
class Findings:
    """Of one run. strikes: by what was done. seconds: lost per hand-over, as the client saw it.

    counted: by gateway metric, of all gateways, those that were killed included. away: streams that ended, or were
    refused, because Redis was. diverged: sessions of an expected and of another text.
    """

    strikes: Counter[str] = field(default_factory=Counter)
    texts: Counter[str] = field(default_factory=Counter)
    tokens: int = 0
    rounds: int = 0
    resumes: int = 0
    hand_overs: int = 0
    away: int = 0
    counted: Counter[str] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)
    differences: list[str] = field(default_factory=list)
    diverged: list[tuple[Case, str]] = field(default_factory=list)

    def add(self, case: Case, told: Told, session: dict[str, Any]) -> None:
        """One text, and its session as a gateway tells of it."""
        self.texts[case.rule] += 1
        self.tokens += told.tokens
        self.rounds += session["speculation"]["rounds"]
        self.resumes += told.connections - 1
        self.hand_overs += session["epoch"] - 1
        self.away += sum(STORE_AWAY in message for message in told.errors)
        self.seconds.extend(told.gaps)
        self.differences.extend(f"{case.rule}, session {told.session}: {one}" for one in differences(case, told))
        if session["usage"] != told.usage:
            self.differences.append(f"{case.rule}, session {told.session}: usage of the session {session['usage']}")
        if told.text != case.expected.text:
            self.diverged.append((case, told.session))

    def count(self, url: str) -> None:
        """Add what a gateway has counted; one that is not there has nothing to tell."""
        try:
            lines = httpx.get(f"{url}/metrics", timeout=10).text.splitlines()
        except httpx.TransportError:
            return
        for line in lines:
            name = line.partition(" ")[0].partition("{")[0]
            if name in (ATTEMPTS, OUTAGES, AWAY):
                self.counted[name] += float(line.rpartition(" ")[2])  # type: ignore[assignment]

    def markdown(self) -> str:
        """A table; below it, whatever differed."""
        lost = [f"{percentile(self.seconds, percent):.2f} s" for percent in (50, 95)] if self.seconds else ["-", "-"]
        counted = self.counted
        rows = {
            "texts finished": f"{self.texts.total()} ({_listed(self.texts)})",
            "tokens": str(self.tokens),
            "differences": str(len(self.differences)),
            "strikes": f"{self.strikes.total()} ({_listed(self.strikes)})",
            "streams resumed": str(self.resumes),
            "hand-overs": str(self.hand_overs),
            "rounds asked again, at most": f"{self.hand_overs + counted[ATTEMPTS]:.0f} of {self.rounds}",
            "time lost where a client reconnected, median / p95": " / ".join(lost),
            "outages of Redis, as each gateway saw them": f"{counted[OUTAGES]:.0f}, {counted[AWAY]:.0f} s in all",
            "streams ended or refused because Redis was away": str(self.away),
        }
        table = [f"| {name} | {value} |" for name, value in rows.items()]
        return "\n".join([f"| chaos, {datetime.now(UTC):%Y-%m-%d} | |", "|---|---|", *table, *self.differences])


def differences(case: Case, told: Told) -> Iterator[str]:
    """What is not as it was without trouble, or is told twice."""
    for name in ("text", "finish", "usage"):
        if (seen := getattr(told, name)) != (expected := getattr(case.expected, name)):
            yield f"{name} {seen!r} instead of {expected!r}"
    if told.repeated:
        yield f"{told.repeated} events told again"
    if told.usage and told.tokens != told.usage["completion_tokens"]:
        yield f"{told.tokens} tokens told, usage {told.usage}"


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))
