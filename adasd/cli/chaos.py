"""`adasd chaos`: two of every service, any of which is killed or paused every few seconds, and every text as ever."""

from __future__ import annotations

import signal
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Annotated, Any

import httpx
import typer

from adasd.bench.statistics import percentile
from adasd.cli.fleet import LEASE_SECONDS, Fleet, FleetOptions
from adasd.cli.resuming import ResumingClient, Told
from adasd.cli.up import stack_options
from adasd.core.errors import AdasdError, InvalidRequest

TOY = "toy:seed=1,vocab=48,sharpness=1.5,eos_bias=-4,context=640,delay_ms=3"
TOY_DRAFT = f"{TOY},mix=0.35,stranger=2"
RULES: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "coupled": {"seed": 11, "speculation": {"acceptance": "coupled"}},
    "adasd": {"seed": 13, "speculation": {"acceptance": "adasd", "stopping": "adasd"}},
    "anchored": {"seed": 17, "speculation": {"acceptance": "adasd-anchored", "stopping": "fixed"}},
}
"""The last two give the same text as long as some drafter answers, and here one always does."""
PROMPTS = ("go on", "tell me of the sea", "why?")
PATIENCE_SECONDS = 3 * LEASE_SECONDS
WINDOW_SECONDS = 60
REST_SECONDS = (2.0, 6.0)
PAUSES_SECONDS = (1.5 * LEASE_SECONDS, 4 * LEASE_SECONDS)
PAUSED, REDIS_STRUCK = 0.25, 0.08
FAILED_ATTEMPTS = "adasd_gateway_verifier_failures_total"


@dataclass(frozen=True, slots=True)
class Case:
    """One request, and what came of it when nothing went wrong."""

    rule: str
    body: dict[str, Any]
    expected: Told


@dataclass
class Findings:
    """Of one run. strikes: by what was done. seconds: lost per hand-over, as the client saw it. attempts: at a verdict,
    that failed.
    """

    strikes: Counter[str] = field(default_factory=Counter)
    texts: Counter[str] = field(default_factory=Counter)
    tokens: int = 0
    rounds: int = 0
    resumes: int = 0
    hand_overs: int = 0
    attempts: int = 0
    seconds: list[float] = field(default_factory=list)
    differences: list[str] = field(default_factory=list)

    def add(self, case: Case, told: Told, session: dict[str, Any]) -> None:
        """One text, and its session as a gateway tells of it."""
        self.texts[case.rule] += 1
        self.tokens += told.tokens
        self.rounds += session["speculation"]["rounds"]
        self.resumes += told.connections - 1
        self.hand_overs += session["epoch"] - 1
        self.seconds.extend(told.gaps)
        self.differences.extend(f"{case.rule}, session {told.session}: {one}" for one in differences(case, told))
        if session["usage"] != told.usage:
            self.differences.append(f"{case.rule}, session {told.session}: usage of the session {session['usage']}")

    def markdown(self) -> str:
        """A table; below it, whatever differed."""
        lost = [f"{percentile(self.seconds, percent):.2f} s" for percent in (50, 95)] if self.seconds else ["-", "-"]
        rows = {
            "texts finished": f"{self.texts.total()} ({_listed(self.texts)})",
            "tokens": str(self.tokens),
            "differences": str(len(self.differences)),
            "strikes": f"{self.strikes.total()} ({_listed(self.strikes)})",
            "streams resumed": str(self.resumes),
            "hand-overs": str(self.hand_overs),
            "rounds asked again, at most": f"{self.hand_overs + self.attempts} of {self.rounds}",
            "time lost per hand-over, median / p95": " / ".join(lost),
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


def cases(client: ResumingClient, model: str, max_tokens: int, limit: int | None = None) -> list[Case]:
    """Requests of every rule with their uninterrupted answers. limit: how many; None for all.

    Raises AdasdError where one has none.
    """

    def body(fields: dict[str, Any], prompt: str) -> dict[str, Any]:
        return {
            "model": model,
            "messages": [{"role": "user", "content": prompt}],
            "stream": True,
            "stream_options": {"include_usage": True},
            "max_tokens": max_tokens,
            "resumable": {"window_s": WINDOW_SECONDS},
            **fields,
        }

    bodies = [(rule, body(fields, prompt)) for prompt in PROMPTS for rule, fields in RULES.items()]
    known = [Case(rule, asked, client.converse(asked)) for rule, asked in bodies[:limit]]
    for case in known:
        if case.expected.error is not None:
            raise AdasdError(f"{case.rule}: {case.expected.error['message']}")
    return known


def run(
    fleet: Fleet, known: Sequence[Case], seconds: float, streams: int, seed: int, patience: float = PATIENCE_SECONDS
) -> Findings:
    """Ask on so many streams while one process after another is struck. patience: of a client, in silence."""
    findings, stop, lock = Findings(), threading.Event(), threading.Lock()
    client = ResumingClient(fleet.urls, patience)

    def ask(stream: int) -> None:
        random = Random(f"{seed} {stream}")
        while not stop.is_set():
            case, first = random.choice(known), random.randrange(len(fleet.urls))
            try:
                told = client.converse(case.body, gateway=first)
                if told.error is not None:
                    raise AdasdError(f"session {told.session}: {told.error}")
                session = client.session(told)
            except AdasdError as error:
                findings.differences.append(f"{case.rule}: {error}")
            else:
                with lock:
                    findings.add(case, told, session)

    with ThreadPoolExecutor(streams) as pool:
        asking = [pool.submit(ask, n) for n in range(streams)]
        try:
            strike_until(fleet, time.monotonic() + seconds, Random(seed), findings)
        finally:
            stop.set()
        for one in asking:
            one.result()
    findings.attempts += sum(_failed_attempts(url) for url in fleet.urls)
    return findings


def strike_until(fleet: Fleet, end: float, random: Random, findings: Findings) -> None:
    """Until `end`, as `time.monotonic` counts; then wait until all are back."""
    while time.monotonic() + (rest := random.uniform(*REST_SECONDS)) < end:
        time.sleep(rest)
        findings.strikes[_strike(fleet, random, findings)] += 1
    fleet.wait_ready()


def _strike(fleet: Fleet, random: Random, findings: Findings) -> str:
    """Kill and start again, pause past the lease, or restart Redis; what was done."""
    if random.random() < REDIS_STRUCK:
        fleet.redis.stop()
        fleet.redis.start()
        return "redis restarted"
    name = random.choice([name for name in sorted(fleet.children) if not _last_drafter(fleet, name)])
    service, _, number = name.partition("-")
    if random.random() < PAUSED:
        fleet.pause(name, random.uniform(*PAUSES_SECONDS))
        return f"{service} paused"
    if service == "gateway":
        findings.attempts += _failed_attempts(fleet.urls[int(number)])  # counted by the one that goes
    fleet.kill(name)
    fleet.children[name].start()
    return f"{service} killed"


def _last_drafter(fleet: Fleet, name: str) -> bool:
    """Whether it is a drafter and no other one is there: without any, seeded texts may be others."""
    return name.startswith("drafter") and not any(
        fleet.serves(other) for other in fleet.children if other.startswith("drafter") and other != name
    )


def _failed_attempts(url: str) -> int:
    """As that gateway counts; one that is not back yet has nothing to tell."""
    try:
        lines = httpx.get(f"{url}/metrics", timeout=10).text.splitlines()
    except httpx.TransportError:
        return 0
    return int(sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(FAILED_ATTEMPTS)))


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))


def chaos(
    minutes: Annotated[float, typer.Option(help="How long.", min=0.05)] = 10.0,
    streams: Annotated[int, typer.Option(help="Answers at a time.", min=1, max=64)] = 4,
    seed: Annotated[int, typer.Option(help="Of what is asked and what is struck.")] = 0,
    target: Annotated[str | None, typer.Option(help="Model folder or toy:...; a toy if not given.")] = None,
    draft: Annotated[str | None, typer.Option(help="Likewise; both or none.")] = None,
    patience: Annotated[float, typer.Option(help="Seconds of silence after which a client looks elsewhere.", min=1)] = (
        PATIENCE_SECONDS
    ),
    max_tokens: Annotated[int, typer.Option(help="Longest answer.", min=1)] = 300,
    logs: Annotated[Path | None, typer.Option(help="Folder for the services' logs.")] = None,
) -> None:
    """Kill, pause and restart processes under streams that resume; exit code 1 if any text or usage differs."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with _started(target, draft, logs) as fleet:
            fleet.wait_ready(600)
            known = cases(ResumingClient(fleet.urls), fleet.options.model_name, max_tokens)
            findings = run(fleet, known, 60 * minutes, streams, seed, patience)
    except AdasdError as error:
        typer.secho(f"error: {error}", fg="red", err=True)
        raise typer.Exit(1) from None
    typer.echo(findings.markdown())
    if findings.differences:
        raise typer.Exit(1)


@contextmanager
def _started(target: str | None, draft: str | None, logs: Path | None) -> Iterator[Fleet]:
    """Two of each service over a Redis that keeps its data."""
    if (target is None) != (draft is None):
        raise InvalidRequest("give both --target and --draft, or neither for a toy pair")
    with tempfile.TemporaryDirectory(prefix="adasd-chaos-") as folder:
        pair = stack_options(
            target or TOY, draft or TOY_DRAFT, None, host="127.0.0.1", port=0, redis_url=None, logs=logs or Path(folder)
        )
        options = FleetOptions(pair.draft, pair.target, pair.tokenizer, pair.logs, pair.model_name, data=Path(folder))
        with Fleet(options) as fleet:
            yield fleet
