"""From single answers to Markdown: medians, percentiles and paired ratios, with what relaxation must be read with."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from statistics import median

from adasd.bench.answers import Answer, batch_rates, grouped
from adasd.bench.statistics import paired_ratio, percentile

Cell = Callable[[Sequence[Answer]], str]
NOTHING = "-"


def report(answers: Sequence[Answer], baseline: str) -> str:
    """All tables: a section per load and context, in it one table per data file and one in all; then what grows.

    Variants have the order in which they came first.
    """
    parts = []
    order = {name: place for place, name in enumerate(grouped(answers, _variant))}
    answers = sorted(answers, key=lambda answer: order[answer.variant])
    for (load, context), group in grouped(answers, lambda answer: (answer.load, answer.context)).items():
        parts.append(f"## {load}{_length(context)}")
        files = grouped(group, lambda answer: answer.data)
        for name, part in files.items():
            parts += [f"### {name}", methods_table(part, baseline)]
        if len(files) > 1:
            parts += ["### in all", methods_table(group, baseline)]
    return "\n\n".join([*parts, *_growing(answers), *_failures(answers)])


def methods_table(answers: Sequence[Answer], baseline: str) -> str:
    """One row a variant, in order of first appearance; tokens/s is the median over batches, at one stream a prompt."""
    header = (
        "method",
        "tokens/s",
        f"against {baseline} [95%]",
        "acceptance",
        "mean length",
        "rounds with candidates",
        "copied",
        "accepted by relaxation",
        "its loss, nats: mean / worst",
        "first text, ms: p50 / p95",
        "between pieces, ms: p50 / p95",
        "failed",
    )
    variants = grouped(answers, _variant)
    base = batch_rates(variants.get(baseline, []))
    return _markdown(header, [_row(name, group, base) for name, group in variants.items()])


def _row(name: str, answers: Sequence[Answer], base: dict[tuple[object, ...], float]) -> list[str]:
    rates = batch_rates(answers)
    paired = [place for place in rates if place in base]
    ratio = str(paired_ratio([rates[p] for p in paired], [base[p] for p in paired])) if paired else NOTHING
    failed = sum(answer.error is not None for answer in answers)
    rate = f"{median(rates.values()):.1f}" if rates else NOTHING
    return [name, rate, ratio, *_speculation(answers), _first(answers), _gaps(answers), f"{failed} of {len(answers)}"]


def _speculation(answers: Sequence[Answer]) -> list[str]:
    records = [answer.reply.speculation for answer in answers if answer.reply and answer.reply.speculation]
    if not records:
        return [NOTHING] * 6
    names = ("rounds", "drafts", "drafted", "accepted", "copied", "relaxed")
    rounds, drafts, drafted, accepted, copied, relaxed = (sum(record[name] for record in records) for name in names)
    loss = sum(record["relaxed"] * (record["relaxed_loss_mean"] or 0.0) for record in records)
    worst = max(record["relaxed_loss_max"] or 0.0 for record in records)
    return [
        f"{accepted / drafted:.3f}" if drafted else NOTHING,
        f"{1 + accepted / rounds:.2f}",
        f"{drafts / rounds:.0%}",
        f"{copied / drafted:.0%}" if drafted else NOTHING,
        f"{relaxed / accepted:.1%}" if accepted else NOTHING,
        f"{loss / relaxed:.2f} / {worst:.2f}" if relaxed else NOTHING,
    ]


def _first(answers: Sequence[Answer]) -> str:
    return _milliseconds([answer.first for answer in answers if answer.first is not None])


def _gaps(answers: Sequence[Answer]) -> str:
    return _milliseconds([gap for answer in answers for gap in answer.gaps])


def _milliseconds(seconds: Sequence[float]) -> str:
    if not seconds:
        return NOTHING
    return f"{1e3 * percentile(seconds, 50):.0f} / {1e3 * percentile(seconds, 95):.0f}"


def _growing(answers: Sequence[Answer]) -> Iterator[str]:
    """Matrices over loads and over contexts, where there are several."""
    for context, group in grouped(answers, lambda answer: answer.context).items():
        if len({answer.load for answer in group}) > 1:
            yield f"## Tokens/s in all (95th percentile between pieces of text, ms){_length(context)}"
            yield _matrix(group, lambda answer: answer.load, _throughput)
    for load, group in grouped(answers, lambda answer: answer.load).items():
        if len({answer.context for answer in group}) > 1:
            yield f"## Time per token after the first text, ms (prompt tokens as the server counts them), {load}"
            yield _matrix(group, lambda answer: f"{answer.context} tokens", _token_time)


def _variant(answer: Answer) -> str:
    return answer.variant


def _length(context: int | None) -> str:
    return "" if context is None else f", prompts of {context} tokens"


def _throughput(answers: Sequence[Answer]) -> str:
    rates = batch_rates(answers)
    gaps = [gap for answer in answers for gap in answer.gaps]
    if not rates or not gaps:
        return NOTHING
    return f"{median(rates.values()):.1f} ({1e3 * percentile(gaps, 95):.0f})"


def _token_time(answers: Sequence[Answer]) -> str:
    times = [answer.token_seconds for answer in answers if answer.token_seconds is not None]
    prompts = [answer.reply.prompt_tokens for answer in answers if answer.reply and answer.reply.prompt_tokens]
    if not times:
        return NOTHING
    length = f" ({median(prompts):.0f})" if prompts else ""
    return f"{1e3 * median(times):.1f}{length}"


def _matrix(answers: Sequence[Answer], column: Callable[[Answer], str], cell: Cell) -> str:
    """A row per variant, a column per value of `column`."""
    columns = grouped(answers, column)
    rows = [
        [name, *(cell(group) if (group := [a for a in mine if column(a) == title]) else NOTHING for title in columns)]
        for name, mine in grouped(answers, _variant).items()
    ]
    return _markdown(("method", *columns), rows)


def _failures(answers: Iterable[Answer]) -> Iterator[str]:
    """Every kind of failure once, with how often it came."""
    failed = grouped((a for a in answers if a.error is not None), lambda answer: (answer.variant, answer.error))
    if failed:
        yield "## Failures"
        yield "\n".join(f"- {variant}, {len(group)} times: {error}" for (variant, error), group in failed.items())


def _markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (header, ["---"] * len(header), *rows))
