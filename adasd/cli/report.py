"""From single answers to a table: medians and paired ratios, with the figures relaxation must be read with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True, slots=True)
class Answer:
    """One prompt answered by one method. Speculation figures are None where a peer does not tell."""

    method: str
    prompt: int
    tokens: int
    seconds: float
    first_token_seconds: float | None = None
    rounds: int | None = None
    drafts: int | None = None
    drafted: int | None = None
    accepted: int | None = None
    relaxed: int | None = None
    loss_total: float | None = None
    loss_max: float | None = None

    @property
    def rate(self) -> float:
        """Tokens per second, prompt and first token included."""
        return self.tokens / self.seconds


HEADER = (
    "| method | tokens/s | against target alone | acceptance | mean length | rounds with candidates "
    "| accepted by relaxation | its loss, nats: mean / worst | first token, ms |\n"
    "|---|---|---|---|---|---|---|---|---|"
)


def table(answers: Sequence[Answer], baseline: str) -> str:
    """Markdown: one row a method, in order of first appearance."""
    methods = dict.fromkeys(answer.method for answer in answers)
    base = {answer.prompt: answer.rate for answer in answers if answer.method == baseline}
    return "\n".join([HEADER, *(_row(name, [a for a in answers if a.method == name], base) for name in methods)])


def _row(name: str, answers: Sequence[Answer], base: dict[int, float]) -> str:
    ratio = median(answer.rate / base[answer.prompt] for answer in answers)
    cells = [name, f"{median(answer.rate for answer in answers):.1f}", f"{ratio:.2f}", *_speculation(answers)]
    first = [answer.first_token_seconds for answer in answers if answer.first_token_seconds is not None]
    cells.append(f"{1000 * median(first):.0f}" if first else "-")
    return "| " + " | ".join(cells) + " |"


def _speculation(answers: Sequence[Answer]) -> list[str]:
    if any(answer.rounds is None for answer in answers):
        return ["-"] * 5
    rounds, drafts, drafted, accepted, relaxed = (
        sum(getattr(answer, name) for answer in answers)
        for name in ("rounds", "drafts", "drafted", "accepted", "relaxed")
    )
    loss = sum(answer.loss_total or 0.0 for answer in answers)
    worst = max(answer.loss_max or 0.0 for answer in answers)
    return [
        f"{accepted / drafted:.3f}" if drafted else "-",
        f"{1 + accepted / rounds:.2f}",
        f"{drafts / rounds:.0%}",
        f"{relaxed / accepted:.1%}" if accepted else "-",
        f"{loss / relaxed:.2f} / {worst:.2f}" if relaxed else "-",
    ]
