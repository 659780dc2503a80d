"""The demo pair: SmolLM2-135M-Instruct and its student. The target is converted once, into a cache on this machine."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from adasd.cache import cache_folder
from adasd.core.errors import InvalidRequest
from adasd.runtime.conversion import make_once
from adasd.runtime.gguf_source import Say, convert_gguf

DRAFT_VARIABLE = "ADASD_DRAFT_MODEL"
TARGET_NAME = "smollm2-135m-instruct"
DRAFT_NAME = "smollm2-draft"
CONVERSION_STEPS = 5

Convert = Callable[[Path, Say], None]
"""Writes a model folder, saying what it does."""


@dataclass(frozen=True, slots=True)
class DemoPair:
    """Two model folders. The draft's needs the target's for its embedding: `RuntimeOptions(target=pair.target)`."""

    target: Path
    draft: Path


def ensure_demo_pair(
    cache: Path | None = None, draft: Path | None = None, convert: Convert = convert_gguf, hashes: bool = False
) -> DemoPair:
    """Both folders of the demo pair, converting the target unless the cache holds it undamaged (20 s to a minute).

    cache: folder for models; see `cache_folder`. draft: the student's folder; see `draft_folder`.
    hashes: compare the cached files with their sha256, not with their sizes only.
    Raises ServiceUnavailable, saying what to install, if the target has to be converted and its wheel is absent.
    """
    student = draft_folder(draft)
    target = (cache or cache_folder()) / "models" / TARGET_NAME

    def fill(folder: Path) -> None:
        with _progress() as say:
            convert(folder, say)

    make_once(target, fill, hashes)
    return DemoPair(target, student)


def draft_folder(named: Path | None = None) -> Path:
    """The student's folder: as named, else $ADASD_DRAFT_MODEL, else models/ of a checkout, else share/adasd/models/.

    The last is below the environment's prefix, where an installed distribution puts it. Raises InvalidRequest.
    """
    places = [
        Path(__file__).parents[2] / "models" / DRAFT_NAME,
        Path(sys.prefix) / "share" / "adasd" / "models" / DRAFT_NAME,
    ]
    if chosen := named or os.environ.get(DRAFT_VARIABLE):
        places = [Path(chosen)]
    for place in places:
        if (place / "config.json").is_file():
            return place
    searched = ", ".join(map(str, places))
    raise InvalidRequest(f"no draft model in {searched}; set {DRAFT_VARIABLE} to its folder", "draft")


@contextmanager
def _progress() -> Iterator[Say]:
    """A progress bar on stderr that moves on with every step."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(file=sys.stderr), redirect_stderr=False) as bar:
        task = bar.add_task("Converting the demo model, once", total=CONVERSION_STEPS)
        done = count()

        def say(step: str) -> None:
            bar.update(task, description=f"Converting the demo model, once: {step}", completed=next(done))

        yield say
        bar.update(task, completed=CONVERSION_STEPS)
