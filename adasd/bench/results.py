"""All of one run: its answers, what was asked and on which machine; as Markdown, JSON, plots and a Chrome trace."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from adasd.bench.answers import Answer, grouped
from adasd.bench.machine import described
from adasd.bench.tables import report
from adasd.bench.timeline import chrome_trace, commit_table, shares_table


@dataclass(frozen=True, slots=True)
class Results:
    """settings: of the run, by option. machine: facts. baseline: the variant that others are compared with."""

    settings: Mapping[str, Any]
    machine: Mapping[str, Any]
    baseline: str
    answers: list[Answer] = field(default_factory=list)

    def markdown(self) -> str:
        """Tables, and below them what they were measured with."""
        told = "\n".join(f"- {name}: {value}" for name, value in self.settings.items() if value is not None)
        parts = [report(self.answers, self.baseline), *self._times(), "## Measured with", told]
        return "\n\n".join([*parts, described(self.machine)]) + "\n"

    def _times(self) -> Iterator[str]:
        """Where the time of traced answers went."""
        traced = [answer for answer in self.answers if answer.reply and answer.reply.rounds]
        for variant, group in grouped(traced, lambda answer: answer.variant).items():
            yield f"## Where the time goes: {variant}"
            yield shares_table([answer.reply.rounds for answer in group if answer.reply])
        if traced:
            yield "## Commits"
            yield commit_table(traced)

    def write(self, folder: Path, say: Callable[[str], None]) -> None:
        """answers.json, table.md, and plots where matplotlib is installed."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "table.md").write_text(self.markdown())
        (folder / "answers.json").write_text(json.dumps(asdict(self), indent=1))
        try:
            from adasd.bench.plots import write_plots
        except ModuleNotFoundError:
            say("no plots: not installed: pip install 'adasd-serving[bench]'")
        else:
            write_plots(self.answers, folder)


def write_trace(answers: Sequence[Answer], file: Path) -> None:
    """For chrome://tracing or Perfetto."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(chrome_trace(answers)))
