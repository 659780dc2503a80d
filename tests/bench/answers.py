"""Answers as a run would have given them."""

from __future__ import annotations

from typing import Any

from adasd.bench.answers import Answer, Reply

RECORD = {
    "rounds": 10, "drafts": 9, "drafted": 20, "accepted": 10, "copied": 5, "relaxed": 2, "relaxed_loss_mean": 0.5,
    "relaxed_loss_max": 0.75,
}  # fmt: skip
ALONE = {**RECORD, "drafts": 0, "drafted": 0, "accepted": 0, "copied": 0, "relaxed": 0} | {
    "relaxed_loss_mean": None,
    "relaxed_loss_max": None,
}


def answer(
    variant: str, prompt: int, seconds: float, record: dict[str, Any] | None = None, *, tokens: int = 10, **fields: Any
) -> Answer:
    """A batch of its own, unless told otherwise; half of the text after a quarter of the time, the rest at the end."""
    reply = Reply(tokens, (seconds / 4, seconds), prompt_tokens=fields.pop("prompt_tokens", 7), speculation=record)
    given = {"data": "file", "load": "1 stream", "batch": prompt, "reply": reply} | fields
    return Answer(variant=variant, prompt=prompt, seconds=seconds, **given)


def step(name: str, begin: float, seconds: float, **told: float) -> dict[str, Any]:
    return {"step": name, "begin": begin, "seconds": seconds, **told}


def told(queue: float, forward: float, rules: float) -> dict[str, float]:
    return {"forwards": 1, "queue": queue, "forward": forward, "rules": rules}


def traced_round(begin: float, end: float, *steps: dict[str, Any], tokens: int = 2) -> dict[str, Any]:
    return {"drafted": 3, "accepted": 1, "tokens": tokens, "timing": {"begin": begin, "end": end, "steps": list(steps)}}
