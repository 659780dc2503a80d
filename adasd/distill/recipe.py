"""Everything that decides what a distillation makes; a resumed run must have been begun with the same."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from adasd.core.errors import InvalidRequest
from adasd.distill.train import TrainingPlan
from adasd.distill.writing import AnswerPlan

HELD_OUT_TEMPERATURES = (0.0, 0.7, 1.0)
HELD_OUT_SHARE = 0.05


@dataclass(frozen=True, slots=True)
class Recipe:
    """target, prompts, init: as on the command line. layers: of the target, unless `init` names an earlier student.

    vocabulary: ids the head knows. limit: tokens of an answer. longest_prompt: in tokens. slots: rows in flight of each
    of `workers` threads. answers: at most so many are written, in `writing_seconds` at most. held_out: prompts of each
    source. precision: of the products in which answers to train on are written; held-out ones are float32.
    """

    target: str
    prompts: tuple[str, ...]
    training: TrainingPlan
    layers: tuple[int, ...] = (0, 1, 14, 29)
    init: str | None = None
    vocabulary: int = 8192
    writing: AnswerPlan = field(default_factory=AnswerPlan)
    answers: int | None = None
    writing_seconds: float | None = None
    limit: int = 256
    longest_prompt: int = 256
    slots: int = 96
    workers: int = 1
    held_out: int = 24
    precision: str = "float32"

    def __post_init__(self) -> None:
        if self.answers is None and self.writing_seconds is None:
            raise InvalidRequest("writing answers needs an end: a number or a time", "budget")
        for name in ("vocabulary", "limit", "longest_prompt", "slots", "workers", "held_out"):
            if getattr(self, name) < 1:
                raise InvalidRequest(f"{name} must be at least 1, got {getattr(self, name)}", name)

    def described(self) -> dict[str, Any]:
        """As JSON keeps it."""
        known: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return known


@dataclass(slots=True)
class Stage:
    """How far a run has come: seconds spent on writing answers, and whether that stage is over.

    Kept beside the recipe in a file that is replaced as a whole.
    """

    path: Path
    recipe: Recipe
    writing_seconds: float = 0.0
    written: bool = False

    def save(self) -> None:
        known = {"recipe": self.recipe.described(), "writing_seconds": self.writing_seconds, "written": self.written}
        partial = self.path.with_suffix(".partial")
        partial.write_text(json.dumps(known, indent=1), encoding="utf-8")
        os.replace(partial, self.path)


def open_stage(folder: Path, recipe: Recipe) -> Stage:
    """The stage a folder is at, a fresh one if it is new. Raises InvalidRequest if another recipe was begun there."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "recipe.json"
    if not path.exists():
        stage = Stage(path, recipe)
        stage.save()
        return stage
    known = json.loads(path.read_text(encoding="utf-8"))
    described = recipe.described()
    if changed := sorted(name for name in described if known["recipe"].get(name) != described[name]):
        raise InvalidRequest(f"{folder} was begun with another {', '.join(changed)}; name a new folder", changed[0])
    return Stage(path, recipe, known["writing_seconds"], known["written"])
