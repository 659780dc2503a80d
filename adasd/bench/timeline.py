"""Where the time of traced answers went: a Chrome trace with one lane per service, and a table of shares.

A message is what a chunk tells under `adasd` with `speculation.trace`: `rounds`, `drafted`, `accepted`, `tokens` and
`timing`, with `begin`, `end` and `steps` (docs/api.md). All times are seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, zip_longest
from typing import Any

from adasd.bench.answers import Answer
from adasd.bench.statistics import percentile

Round = Mapping[str, Any]
Event = dict[str, Any]

LANES = {"gateway": 1, "drafter": 2, "verifier": 3, "redis": 4, "client": 5}
"""Services, and the number of each in the trace; for the client, what the gateway does to tell it."""
SERVICE = {"draft": "drafter", "verify": "verifier", "create": "redis", "commit": "redis"}
TOLD = ("queue", "forward", "rules")
PARTS = (
    *(f"{service} {part}" for service in ("drafter", "verifier") for part in ("forward", "rules", "queue", "network")),
    *("drafter, not told", "verifier, not told", "create", "gateway"),
)
BESIDE = ("commit", "telling")
"""What goes on while the next block is under way."""
STORED = (100, 1000, 4000, 8000)
"""Tokens of a session at which rows of the commit table begin."""


def chrome_trace(answers: Iterable[Answer]) -> dict[str, Any]:
    """Trace-event JSON for chrome://tracing or Perfetto: a process per service, in it a lane per concurrent answer.

    What a replica tells has durations but no clock of ours: it is drawn in the middle of what the gateway waited, or
    before that by as much as it was ahead.
    """
    events: list[Event] = []
    busy: list[float] = []  # until when, by lane
    for answer in sorted(answers, key=lambda answer: answer.begin):
        if answer.reply is not None and answer.reply.rounds:
            lane = next((lane for lane, until in enumerate(busy) if until <= answer.begin), len(busy))
            busy[lane:] = [answer.begin + answer.seconds, *busy[lane + 1 :]]
            events += _answer_events(answer, answer.reply.rounds, lane)
    return {"displayTimeUnit": "ms", "traceEvents": [*_names(len(busy)), *events]}


def _names(lanes: int) -> Iterator[Event]:
    for service, process in LANES.items():
        yield {"ph": "M", "name": "process_name", "pid": process, "tid": 0, "args": {"name": service}}
        yield {"ph": "M", "name": "process_sort_index", "pid": process, "tid": 0, "args": {"sort_index": process}}
        for lane in range(lanes):
            name = f"{service} {lane + 1}" if lanes > 1 else service
            yield {"ph": "M", "name": "thread_name", "pid": process, "tid": lane, "args": {"name": name}}


def _answer_events(answer: Answer, rounds: Sequence[Round], lane: int) -> Iterator[Event]:
    def slice_(service: str, name: str, begin: float, seconds: float, **args: Any) -> Event:
        stamp, duration = 1e6 * (answer.begin + begin), 1e6 * seconds
        return {
            "ph": "X",
            "cat": answer.variant,
            "name": name,
            "pid": LANES[service],
            "tid": lane,
            "ts": stamp,
            "dur": duration,
            "args": args,
        }

    yield slice_("gateway", answer.variant, 0, answer.seconds, data=answer.data, prompt=answer.prompt)
    for number, (one, following) in enumerate(zip_longest(rounds, rounds[1:])):
        timing = one["timing"]
        figures = {name: one.get(name) for name in ("rounds", "drafted", "accepted", "tokens")}
        yield slice_("gateway", f"round {number}", timing["begin"], _end(one, following) - timing["begin"], **figures)
        for step in _split(one)[0]:
            yield slice_("gateway", step["step"], step["begin"], step["seconds"])
        for step in timing["steps"]:
            service = SERVICE[step["step"]]
            for name, begin, seconds in _slices(step):
                yield slice_(service, name, begin, seconds, round=number, forwards=step.get("forwards"))
        told = beside(one)["telling"]
        yield slice_("client", "telling", timing["end"] - told, told, round=number)


def _slices(step: Mapping[str, Any]) -> list[tuple[str, float, float]]:
    """What the service did in a step: name, begin, seconds."""
    if not _told(step):
        return [(step["step"], step["begin"], step["seconds"])]
    parts = [step[part] for part in TOLD]
    ahead = step.get("ahead", 0.0)
    waited = max(0.0, step["seconds"] - sum(parts) + ahead)
    begins = accumulate(parts, initial=step["begin"] - ahead + waited / 2)
    return [part for part in zip(TOLD, begins, parts, strict=False) if part[2]]


def _told(step: Mapping[str, Any]) -> bool:
    """Whether a replica has told of its time: whatever it answers takes a pass of its model."""
    return bool(step.get("forwards"))


def spent(rounds: Sequence[Round]) -> Iterator[dict[str, float]]:
    """Seconds of every round by PARTS, until the next one begins; network is what a replica did not tell of the wait
    for it, gateway the rest. What was done ahead of the round belongs to the ones before it.
    """
    for one, following in zip_longest(rounds, rounds[1:]):
        steps, _ = _split(one)
        parts = dict.fromkeys(PARTS, 0.0)
        for step in steps:
            for part, seconds in _parts(step):
                parts[part] += seconds
        whole = _end(one, following) - one["timing"]["begin"]
        parts["gateway"] = max(0.0, whole - sum(step["seconds"] for step in steps))
        yield parts


def beside(one: Round) -> dict[str, float]:
    """Seconds of a round by BESIDE: its commit, and from there until its text is handed over."""
    (_, commit), end = _split(one), one["timing"]["end"]
    return {"commit": commit["seconds"], "telling": max(0.0, end - commit["begin"] - commit["seconds"])}


def _end(one: Round, following: Round | None) -> float:
    """When the next round begins; for the last one, when there is nothing left but to commit and tell it."""
    return float(_split(one)[1]["begin"] if following is None else following["timing"]["begin"])


def _split(one: Round) -> tuple[list[Mapping[str, Any]], Mapping[str, Any]]:
    """The steps that the next block waits for, and the commit, which it does not."""
    *before, commit = one["timing"]["steps"]
    return before, commit


def _parts(step: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    service, seconds = SERVICE[step["step"]], step["seconds"]
    if service == "redis":
        yield "create", seconds
        return
    told, ahead = dict[str, float](), step.get("ahead", 0.0)
    for part in TOLD:  # what had gone by when the round began is none of its time
        told[part] = max(0.0, step[part] - ahead)
        ahead = max(0.0, ahead - step[part])
    yield from ((f"{service} {part}", value) for part, value in told.items())
    yield f"{service} network" if _told(step) else f"{service}, not told", max(0.0, seconds - sum(told.values()))


def shares_table(texts: Sequence[Sequence[Round]]) -> str:
    """Markdown: seconds by PARTS of all answers' first messages, which read the prompt, and of their later ones, a
    round; then what goes on beside the next block, which no share counts.
    """
    spans = [list(spent(rounds)) for rounds in texts]
    first = [span[0] for span in spans if span]
    later = [parts for span in spans for parts in span[1:]]
    count = sum(one.get("rounds", 1) for rounds in texts for one in rounds[1:])
    rows = [
        f"| {part} | {_cells(first, len(first), part)} | {_cells(later, count, part)} |"
        for part in PARTS
        if any(parts[part] for parts in (*first, *later))
    ]
    head = "| where | first round, ms | share | a later round, ms | share |\n|---|---|---|---|---|"
    whole = f"| all | {_cells(first, len(first), *PARTS)} | {_cells(later, count, *PARTS)} |"
    together = f"| rounds a message | 1 | - | {count / len(later):.2f} | - |" if later else ""
    return "\n".join([head, *rows, whole, *_beside_rows(texts, count), *filter(None, [together])])


def _beside_rows(texts: Iterable[Sequence[Round]], count: int) -> Iterator[str]:
    """count: of later rounds."""
    found = [[beside(one) for one in rounds] for rounds in texts if rounds]
    for part in BESIDE if found else ():
        first = [rounds[0][part] for rounds in found]
        later = [one[part] for rounds in found for one in rounds[1:]]
        each = (first, len(first)), (later, count)
        cells = (f"{1e3 * sum(times) / number:.2f}" if times else "-" for times, number in each)
        yield f"| beside the next block: {part} | {next(cells)} | - | {next(cells)} | - |"


def _cells(messages: Sequence[Mapping[str, float]], rounds: int, *parts: str) -> str:
    """Mean milliseconds a round, and their share."""
    if not messages:
        return "- | -"
    seconds = sum(one[part] for one in messages for part in parts)
    total = sum(sum(one.values()) for one in messages)
    return f"{1e3 * seconds / rounds:.2f} | {seconds / total:.1%}"


def commit_table(answers: Iterable[Answer]) -> str:
    """Markdown: bytes and milliseconds of a commit by how many tokens the session has, prompt included."""
    bounds = (0, *STORED)
    found: dict[int, list[tuple[int, float]]] = {bound: [] for bound in bounds}
    for answer in answers:
        for stored, size, seconds in _commits(answer):
            found[max(bound for bound in bounds if bound <= stored)].append((size, seconds))
    head = "| tokens of the session | commits | bytes (ids, state) | ms, p50 | ms, p95 |\n|---|---|---|---|---|"
    rows = [_commit_row(bound, commits) for bound, commits in found.items() if commits]
    return "\n".join([head, *rows])


def _commit_row(bound: int, commits: Sequence[tuple[int, float]]) -> str:
    sizes, times = [size for size, _ in commits], [1e3 * seconds for _, seconds in commits]
    times_cells = f"{percentile(times, 50):.2f} | {percentile(times, 95):.2f}"
    return f"| from {bound} | {len(commits)} | {sum(sizes) / len(sizes):.0f} | {times_cells} |"


def _commits(answer: Answer) -> Iterator[tuple[int, int, float]]:
    """Of every commit: tokens of the session after it, bytes written, seconds."""
    if answer.reply is None or answer.reply.prompt_tokens is None:
        return
    stored = accumulate((one["tokens"] for one in answer.reply.rounds), initial=answer.reply.prompt_tokens)
    next(stored)
    for one, tokens in zip(answer.reply.rounds, stored, strict=True):
        for step in one["timing"]["steps"]:
            if step["step"] == "commit":
                yield tokens, step["bytes"], step["seconds"]
