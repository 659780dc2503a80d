"""The model card of a student: recipe, data, learning curve, acceptance by source and temperature."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from adasd.distill.evaluate import Group, Score, pooled


@dataclass(frozen=True, slots=True)
class Facts:
    """What the card tells. figures: named students, each with its held-out scores. recipe, data: lines of text."""

    target: str
    recipe: Sequence[str]
    data: Sequence[str]
    curve: Sequence[Mapping[str, Any]]
    figures: Mapping[str, Mapping[Group, Score]]


def model_card(facts: Facts) -> str:
    """The card as Markdown."""
    parts = [
        f"# Draft model for {facts.target}",
        "A Llama of a few layers that drafts tokens for its target. Embedding, head rows, tokenizer and generation "
        "config are the target's and not in this folder; logits are defined on `lm_head.vocab_ids` only.",
        "## Recipe\n\n" + "\n".join(f"- {line}" for line in facts.recipe),
        "## Data\n\n" + "\n".join(f"- {line}" for line in facts.data),
        "## Learning curve\n\n" + _curve(facts.curve),
        "## Acceptance\n\nHeld-out prompts answered by the target, never trained on here. `sum min(p, q)` over "
        "positions; at temperature 0 the share of positions with the same arg max.\n\n" + _figures(facts.figures),
    ]
    return "\n\n".join(parts) + "\n"


def _curve(curve: Sequence[Mapping[str, Any]]) -> str:
    columns = list(curve[0])
    return _table(columns, [[_shown(point[column]) for column in columns] for point in curve])


def _figures(figures: Mapping[str, Mapping[Group, Score]]) -> str:
    groups = sorted({group for scores in figures.values() for group in scores})
    rows = [
        [source, f"{temperature:g}", str(next(iter(figures.values()))[source, temperature].positions)]
        + [f"{scores[source, temperature].acceptance:.3f}" for scores in figures.values()]
        for source, temperature in groups
    ]
    for temperature in sorted({temperature for _, temperature in groups}):
        pools = [
            pooled({group: score for group, score in scores.items() if group[1] == temperature})
            for scores in figures.values()
        ]
        rows.append(["all", f"{temperature:g}", str(pools[0].positions), *(f"{pool.acceptance:.3f}" for pool in pools)])
    return _table(["source", "temperature", "positions", *figures], rows)


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _shown(value: Any) -> str:
    return f"{value:.3f}" if isinstance(value, float) and value < 10 else f"{value:.0f}"
