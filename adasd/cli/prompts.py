"""Prompts out of data files, as data sets write them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from adasd.core.errors import InvalidRequest

FIELDS = ("prompt", "question", "instruction", "text", "turns")
"""Fields that may hold a prompt, in this order; of `turns` the first."""


def read_prompts(path: Path, count: int) -> list[str]:
    """The first `count` distinct prompts of a .jsonl file (or .json list)."""
    if not path.is_file():
        raise InvalidRequest(f"no such file: {path}", "data")
    prompts = dict.fromkeys(_prompt(item, path) for item in _items(path))
    if len(prompts) < count:
        raise InvalidRequest(f"{path} holds {len(prompts)} distinct prompts, {count} were asked for", "prompts")
    return list(prompts)[:count]


def _items(path: Path) -> list[Any]:
    text = path.read_text()
    try:
        if path.suffix == ".json":
            return list(json.loads(text))
        return [json.loads(line) for line in text.splitlines() if line.strip()]
    except ValueError as error:
        raise InvalidRequest(f"{path} is not JSON: {error}", "data") from error


def _prompt(item: Any, path: Path) -> str:
    if isinstance(item, str):
        return item
    found = next((item[name] for name in FIELDS if isinstance(item, dict) and item.get(name)), None)
    if isinstance(found, list):
        found = found[0]
    if not isinstance(found, str):
        raise InvalidRequest(f"an item of {path} has none of the fields {', '.join(FIELDS)}", "data")
    return found
