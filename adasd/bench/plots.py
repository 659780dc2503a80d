"""Plots of a run, as SVG. Needs matplotlib (the extra `bench`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from adasd.bench.answers import Answer, batch_rates, grouped
from adasd.bench.statistics import percentile
from adasd.bench.timeline import PARTS, spent

Points = Callable[[Sequence[Answer]], float | None]


def write_plots(answers: Sequence[Answer], folder: Path) -> list[Path]:
    """What the run has data for: rates, loads, contexts, shares; what does not vary is as in the first answer."""
    loads = [answer for answer in answers if answer.context == answers[0].context]
    contexts = [answer for answer in answers if answer.load == answers[0].load]
    figures = {"rates": _rates([answer for answer in loads if answer.load == answers[0].load])}
    if len({answer.load for answer in loads}) > 1:
        figures["loads"] = _lines(loads, lambda a: a.load, {"tokens/s in all": _rate, "ms between, p95": _gap})
    if len({answer.context for answer in contexts}) > 1:
        figures["contexts"] = _lines(contexts, lambda a: f"{a.context} tokens", {"ms a token": _token_time})
    if any(answer.reply and answer.reply.rounds for answer in answers):
        figures["shares"] = _shares(answers)
    paths = [folder / f"{name}.svg" for name in figures]
    for figure, path in zip(figures.values(), paths, strict=True):
        figure.savefig(path)
    return paths


def _figure(panels: int, height: float = 4.0) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(7.0 * panels, height), layout="constrained")
    axes = figure.subplots(1, panels, squeeze=False)
    return figure, list(axes[0])


def _rates(answers: Sequence[Answer]) -> Figure:
    """The spread of tokens/s over batches."""
    variants = grouped(answers, lambda answer: answer.variant)
    figure, (axes,) = _figure(1, 1.5 + 0.4 * len(variants))
    rates = [list(batch_rates(group).values()) for group in variants.values()]
    axes.boxplot(rates, orientation="horizontal", tick_labels=list(variants))
    axes.invert_yaxis()
    axes.set_xlabel(f"tokens/s, {answers[0].load}")
    return figure


def _lines(answers: Sequence[Answer], column: Callable[[Answer], str], panels: dict[str, Points]) -> Figure:
    """A line a variant over the values of `column`, a panel per figure."""
    figure, all_axes = _figure(len(panels))
    for (title, points), axes in zip(panels.items(), all_axes, strict=True):
        places = {name: place for place, name in enumerate(grouped(answers, column))}
        for variant, mine in grouped(answers, lambda answer: answer.variant).items():
            found = {places[name]: points(group) for name, group in grouped(mine, column).items()}
            known = {place: value for place, value in found.items() if value is not None}
            axes.plot(list(known), list(known.values()), marker="o", label=variant)
        axes.set_xticks(list(places.values()), list(places))
        axes.set_ylim(bottom=0)
        axes.set_ylabel(title)
    all_axes[0].legend()
    return figure


def _rate(answers: Sequence[Answer]) -> float | None:
    rates = batch_rates(answers)
    return median(rates.values()) if rates else None


def _gap(answers: Sequence[Answer]) -> float | None:
    gaps = [gap for answer in answers for gap in answer.gaps]
    return 1e3 * percentile(gaps, 95) if gaps else None


def _token_time(answers: Sequence[Answer]) -> float | None:
    times = [answer.token_seconds for answer in answers if answer.token_seconds is not None]
    return 1e3 * median(times) if times else None


def _shares(answers: Sequence[Answer]) -> Figure:
    """A bar a variant: milliseconds of a round after the first, by part."""
    later: dict[str, list[dict[str, float]]] = {}
    for answer in answers:
        if answer.reply and answer.reply.rounds:
            later.setdefault(answer.variant, []).extend([*spent(answer.reply.rounds)][1:])
    figure, (axes,) = _figure(1, 1.5 + 0.4 * len(later))
    left = [0.0] * len(later)
    for place, part in enumerate(PARTS):
        widths = [1e3 * sum(one[part] for one in rounds) / max(1, len(rounds)) for rounds in later.values()]
        if any(widths):
            axes.barh(list(later), widths, left=left, label=part, color=colormaps["tab20"](place))
            left = [start + width for start, width in zip(left, widths, strict=True)]
    axes.invert_yaxis()
    axes.set_xlabel("ms of a later round")
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure
