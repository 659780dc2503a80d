"""`adasd chaos`: two of every service, any of which is killed or paused every few seconds, and every text as ever."""

from __future__ import annotations

import os
import signal
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random
from typing import Annotated, Any

import typer

from adasd.cli.findings import Case, Findings
from adasd.cli.fleet import LEASE_SECONDS, Fleet, FleetOptions
from adasd.cli.margins import explained
from adasd.cli.resuming import ResumingClient
from adasd.cli.strikes import READY_SECONDS, Desk, Striker
from adasd.cli.up import stack_options
from adasd.core.errors import AdasdError, InvalidRequest
from adasd.runtime.toy import is_toy

TOY = "toy:seed=1,vocab=48,sharpness=1.5,eos_bias=-4,context=640,delay_ms=3"
TOY_DRAFT = f"{TOY},mix=0.35,stranger=2"
RULES: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "coupled": {"seed": 11, "speculation": {"acceptance": "coupled"}},
    "adasd": {"seed": 13, "speculation": {"acceptance": "adasd", "stopping": "adasd"}},
    "anchored": {"seed": 17, "speculation": {"acceptance": "adasd-anchored", "stopping": "fixed"}},
}
"""The last two give the same text as long as some drafter answers: they are not asked while none is there."""
PROMPTS = ("go on", "tell me of the sea", "why?")
PATIENCE_SECONDS = 3 * LEASE_SECONDS
WINDOW_SECONDS = 60
EVERY_SECONDS = 4.0
GIVE_UP_SECONDS = 600.0
ONE_THREAD = {f"ADASD_{service}_RUNTIME__THREADS": "1" for service in ("DRAFTER", "VERIFIER")}
SHARED_MEMORY = "/dev/shm"


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
    fleet: Fleet,
    known: Sequence[Case],
    seconds: float,
    streams: int,
    seed: int,
    patience: float = PATIENCE_SECONDS,
    every: float = EVERY_SECONDS,
) -> Findings:
    """Ask on so many streams while one process after another is struck. patience: of a client, in silence.

    every: seconds between two strikes, on average.
    """
    findings, stop, lock, desk = Findings(), threading.Event(), threading.Lock(), Desk(known)
    client = ResumingClient(fleet.urls, patience, GIVE_UP_SECONDS)

    def ask(stream: int) -> None:
        random = Random(f"{seed} {stream}")
        while not stop.is_set():
            with desk.case(random) as case:
                try:
                    told = client.converse(case.body, gateway=random.randrange(len(fleet.urls)))
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
            _strike_until(Striker(fleet, Random(seed), findings, desk), time.monotonic() + seconds, every)
        finally:
            stop.set()
        for one in asking:
            one.result()
    for url in fleet.urls:
        findings.count(url)
    return findings


def _strike_until(striker: Striker, end: float, every: float) -> None:
    """Until `end`, as `time.monotonic` counts; then wait until all are back."""
    while time.monotonic() + (rest := striker.random.uniform(0.5 * every, 1.5 * every)) < end:
        time.sleep(rest)
        striker.strike()
    striker.fleet.wait_ready(READY_SECONDS)


def chaos(
    minutes: Annotated[float, typer.Option(help="How long.", min=0.05)] = 10.0,
    streams: Annotated[int, typer.Option(help="Answers at a time.", min=1, max=64)] = 4,
    seed: Annotated[int, typer.Option(help="Of what is asked and what is struck.")] = 0,
    target: Annotated[str | None, typer.Option(help="Model folder or toy:...; a toy if not given.")] = None,
    draft: Annotated[str | None, typer.Option(help="Likewise; both or none.")] = None,
    demo: Annotated[bool, typer.Option("--demo", help="The demo pair.")] = False,
    patience: Annotated[float, typer.Option(help="Seconds of silence after which a client looks elsewhere.", min=1)] = (
        PATIENCE_SECONDS
    ),
    every: Annotated[float, typer.Option(help="Seconds between two strikes, on average.", min=0.1)] = EVERY_SECONDS,
    max_tokens: Annotated[int, typer.Option(help="Longest answer.", min=1)] = 300,
    network: Annotated[bool, typer.Option("--network", help="Disturb the network between the services too.")] = False,
    logs: Annotated[Path | None, typer.Option(help="Folder for the services' logs.")] = None,
) -> None:
    """Kill, pause and restart processes under streams that resume; exit code 1 if any text or usage differs."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        if demo:
            target, draft = _demo_pair(target, draft)
        with _started(target, draft, logs, network) as fleet:
            fleet.wait_ready(600)
            client = ResumingClient(fleet.urls, give_up=GIVE_UP_SECONDS)
            known = cases(client, fleet.options.model_name, max_tokens)
            findings = run(fleet, known, 60 * minutes, streams, seed, patience, every)
            typer.echo(findings.markdown())
            for line in explained(findings.diverged, fleet):
                typer.echo(line)
    except AdasdError as error:
        typer.secho(f"error: {error}", fg="red", err=True)
        raise typer.Exit(1) from None
    if findings.differences:
        raise typer.Exit(1)


def _demo_pair(target: str | None, draft: str | None) -> tuple[str, str]:
    if (target, draft) != (None, None):
        raise InvalidRequest("give --demo, or --target and --draft, not both")
    from adasd.runtime.pair import ensure_demo_pair

    pair = ensure_demo_pair()
    return str(pair.target), str(pair.draft)


@contextmanager
def _started(target: str | None, draft: str | None, logs: Path | None, network: bool) -> Iterator[Fleet]:
    """Two of each service over a Redis that keeps its data."""
    if (target is None) != (draft is None):
        raise InvalidRequest("give both --target and --draft, or neither for a toy pair")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="adasd-chaos-")))
        data = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="adasd-chaos-", dir=_memory())))
        pair = stack_options(
            target or TOY, draft or TOY_DRAFT, None, host="127.0.0.1", port=0, redis_url=None, logs=logs or folder
        )
        models = pair.draft, pair.target, pair.tokenizer, pair.logs, pair.model_name
        environment = {} if is_toy(pair.target) else {**ONE_THREAD, "ADASD_DRAFTER_RUNTIME__TARGET": pair.target}
        options = FleetOptions(*models, data=data, network=network, environment=environment)
        yield stack.enter_context(Fleet(options))


def _memory() -> str | None:
    """Redis writes every command out before it answers: to memory, where there is some, which outlives its process."""
    return SHARED_MEMORY if os.access(SHARED_MEMORY, os.W_OK) else None
