"""`adasd bench`: methods side by side over the running services, interleaved in one run, beside what else there is."""

from __future__ import annotations

import signal
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import track

from adasd.bench.driver import Ask, HttpChat, Messages, run, warm_up
from adasd.bench.machine import machine
from adasd.bench.methods import NAMED, Method, parse_methods
from adasd.bench.results import Results, write_trace
from adasd.bench.schedule import Load, Turn, parse_counts, parse_loads, turns
from adasd.cli.chat import first_model
from adasd.cli.peers import IN_PROCESS, PEERS, Asked, asked, http_client, parse_peers, start_peers
from adasd.cli.stack import Stack, StackOptions
from adasd.cli.up import Beside, stack_options
from adasd.core.errors import AdasdError, InvalidRequest
from adasd.distill.prompts import Prompt, distinct_prompts
from adasd.runtime.pair import DemoPair, ensure_demo_pair
from adasd.runtime.toy import is_toy

console = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
HIDDEN = ("url", "tokenizer", "target", "draft", "out", "trace")
"""Options that name places: they are nothing to publish."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to ask of whom. files: prompts by data file, as many of each. contexts: tokens to bring them to."""

    methods: tuple[Method, ...]
    files: Mapping[str, Sequence[Prompt]]
    loads: tuple[Load, ...]
    contexts: tuple[int | None, ...]
    repeat: int
    asked: Asked

    def turns(self, variants: Sequence[str]) -> list[Turn]:
        count = len(next(iter(self.files.values())))
        return list(turns(variants, [*self.files], self.loads, self.contexts, self.repeat, count, IN_PROCESS))

    def prompts(self, tokenizer: Path | None) -> dict[tuple[str, int | None], Sequence[Messages]]:
        """By data file and context. tokenizer: folder of the tokenizer that counts."""
        return {
            (name, context): _brought_to(prompts, context, tokenizer)
            for name, prompts in self.files.items()
            for context in self.contexts
        }

    @property
    def baseline(self) -> str:
        """The target alone if it runs, else the first method."""
        names = [method.name for method in self.methods]
        alone = NAMED["alone"].name
        return alone if alone in names else names[0]


def bench(
    call: typer.Context,
    data: Annotated[list[Path], typer.Option(help="JSON lines with prompts; may be repeated.")],
    prompts: Annotated[int, typer.Option(help="How many of each file.")] = 10,
    sample: Annotated[int | None, typer.Option(help="Draw them by this seed; the first ones if not given.")] = None,
    methods: Annotated[
        str, typer.Option(help=f"Some of {', '.join(NAMED)}, or STOPPING:ACCEPTANCE[:N] (N may be 1-8).")
    ] = ",".join(NAMED),
    max_tokens: Annotated[int, typer.Option(help="Longest answer.", min=1)] = 64,
    shortest: Annotated[
        int | None, typer.Option(help="Draw each answer's limit from here to --max-tokens, alike for all.", min=1)
    ] = None,
    temperature: Annotated[float, typer.Option(help="0 is greedy.", min=0)] = 0.8,
    concurrency: Annotated[str, typer.Option(help="Streams at a time; 1,2,4 measures each.")] = "1",
    arrival: Annotated[str, typer.Option(help="closed, or poisson:RATES in requests/s, whoever waits.")] = "closed",
    repeat: Annotated[int, typer.Option(help="Every prompt so often, with other seeds.", min=1)] = 1,
    context_lengths: Annotated[str | None, typer.Option(help="Bring prompts to so many tokens: 128,1000.")] = None,
    tokenizer: Annotated[Path | None, typer.Option(help="With --url: folder of what counts them.")] = None,
    url: Annotated[str | None, typer.Option(help="A running gateway; one is started if not given.")] = None,
    target: Annotated[str | None, typer.Option(help="Start it with this model, not the demo pair's.")] = None,
    draft: Annotated[str | None, typer.Option(help="Likewise.")] = None,
    beside: Beside = None,
    peers: Annotated[
        str | None, typer.Option(help=f"none, or some of {','.join(PEERS)}; all of them beside our own demo pair.")
    ] = None,
    trace: Annotated[Path | None, typer.Option(help="Chrome trace of every round; with tables of shares.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for answers.json, table.md and plots.")] = None,
) -> None:
    """Methods on the same prompts, interleaved: tokens/s, ratios with intervals, latencies."""
    settings = {name: value for name, value in call.params.items() if name not in HIDDEN}
    try:
        loads = parse_loads(concurrency, arrival)
        contexts = parse_counts(context_lengths, "context_lengths") if context_lengths else (None,)
        alike = asked(_limits(shortest, max_tokens), temperature, loads, contexts)
        plan = Plan(parse_methods(methods), _read(data, prompts, sample), loads, contexts, repeat, alike)
        plan.turns([])  # refuses what cannot run before anything starts
        wanted = parse_peers(("none" if url or target else ",".join(PEERS)) if peers is None else peers)
        own = None if url else _own_stack(target, draft, beside)
        asked_prompts = plan.prompts(own.tokenizer if own else tokenizer)
        results = Results({**settings, "data": [*plan.files]}, machine(), plan.baseline)
        with _asks(plan, url, own, wanted, trace is not None) as asks, _written(results, out, trace):
            for _ in track(warm_up(asks), "warm-up", len(asks), console=console):
                pass
            every = plan.turns([*asks])
            for answers in track(run(every, asks, asked_prompts), "batches", len(every), console=console):
                results.answers.extend(answers)
    except AdasdError as error:
        typer.secho(f"error: {error}", fg="red", err=True)
        raise typer.Exit(1) from None
    typer.echo(results.markdown())


@contextmanager
def _written(results: Results, out: Path | None, trace: Path | None) -> Iterator[None]:
    """Whatever there is by the end, also when the run is interrupted or told to end."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
        if results.answers and out:
            results.write(out, console.print)
        if results.answers and trace:
            write_trace(results.answers, trace)


def _limits(shortest: int | None, longest: int) -> range:
    """Answers of one length end together and have their next prompts read together, as no real load does."""
    if shortest is not None and shortest > longest:
        raise InvalidRequest(f"shortest must be at most max_tokens ({longest}), got {shortest}", "shortest")
    return range(longest if shortest is None else shortest, longest + 1)


def _read(data: Sequence[Path], count: int, seed: int | None) -> dict[str, Sequence[Prompt]]:
    """Prompts by the name of their file, with its folder's."""
    files = {f"{path.resolve().parent.name}/{path.name}": distinct_prompts(path, count, seed) for path in data}
    if len(files) < len(data):
        raise InvalidRequest("two data files have one name (folder and file)", "data")
    return dict(files)


def _brought_to(prompts: Sequence[Prompt], context: int | None, tokenizer: Path | None) -> Sequence[Messages]:
    """Prompts as conversations; of that many tokens, if told so, from their first turns."""
    if context is None:
        return [prompt.messages for prompt in prompts]
    if tokenizer is None or not (tokenizer / "tokenizer.json").is_file():
        raise InvalidRequest("context_lengths need a folder with a tokenizer.json: give --tokenizer", "tokenizer")
    from tokenizers import Tokenizer

    from adasd.bench.contexts import lengthened

    texts = [prompt.turns[0] for prompt in prompts]
    return lengthened(texts, Tokenizer.from_file(str(tokenizer / "tokenizer.json")), context)


def _own_stack(target: str | None, draft: str | None, beside: bool | None) -> StackOptions:
    """A stack in which no variant begins with what another has read of the same prompt."""
    options = stack_options(target, draft, None, host="127.0.0.1", port=0, redis_url=None, logs=None)
    apart = {f"ADASD_{service}_RUNTIME__IDLE_SESSIONS": "0" for service in ("DRAFTER", "VERIFIER")}
    return replace(options, environment={**options.environment, **apart}).placed(beside)


@contextmanager
def _asks(
    plan: Plan, url: str | None, own: StackOptions | None, peers: Sequence[str], trace: bool
) -> Iterator[dict[str, Ask]]:
    """Every variant by name: methods over the given gateway, or a stack of our own, then peers."""
    pair = _pair(own) if peers else None
    with ExitStack() as stack:
        if own is not None:
            started = stack.enter_context(Stack(own))
            started.wait_ready(600)
            url = started.url
        assert url is not None, "a gateway is given or started"
        client = stack.enter_context(http_client(url))
        request = {**plan.asked.request, "model": first_model(client)}
        marks: dict[str, Any] = {"trace": True} if trace else {}
        asks: dict[str, Ask] = {
            method.name: HttpChat(client, {**request, "speculation": method.speculation | marks}, method.seeded)
            for method in plan.methods
        }
        if pair is not None:
            logs = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="adasd-peers-")))
            asks |= start_peers(peers, pair, plan.asked, logs, stack, console.print)
        yield asks


def _pair(own: StackOptions | None) -> DemoPair:
    """What peers run on: the models of our own stack, or the demo pair beside a gateway of somebody else's."""
    if own is None:
        return ensure_demo_pair()
    if is_toy(own.target):
        raise InvalidRequest("peers need model folders, not toys", "peers")
    return DemoPair(Path(own.target), Path(own.draft))
