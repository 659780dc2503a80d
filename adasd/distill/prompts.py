"""Prompts of JSONL files as conversations, split by hash into training and held-out, in one seeded order."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import zip_longest
from pathlib import Path
from typing import Any

from adasd.core.errors import InvalidRequest

EVALUATION_STEMS = ("test", "heldout", "held_out", "dev", "valid", "validation", "eval")
MAX_TURNS = 5


@dataclass(frozen=True, slots=True)
class Prompt:
    """A conversation that ends with the user's turn. source: the set it came from. key: unique among all prompts."""

    source: str
    key: str
    turns: tuple[str, ...]

    @property
    def messages(self) -> list[dict[str, str]]:
        """The turns with their roles, as chat templates want them."""
        return [{"role": ("user", "assistant")[index % 2], "content": turn} for index, turn in enumerate(self.turns)]


@dataclass(frozen=True, slots=True)
class Split:
    """Prompts to train on and prompts to judge by; no text is in both."""

    training: tuple[Prompt, ...]
    held_out: tuple[Prompt, ...]


def parse_source(argument: str) -> tuple[str, Path]:
    """`NAME=FILE`, or a file alone: the source is then named after its folder. Raises InvalidRequest."""
    name, separator, file = argument.rpartition("=")
    path = Path(file)
    if not path.is_file():
        raise InvalidRequest(f"no prompt file {path}", "prompts")
    if any(path.stem == stem or path.stem.endswith(f"_{stem}") for stem in EVALUATION_STEMS):
        raise InvalidRequest(f"{path} is an evaluation split: a student must never see it", "prompts")
    return (name if separator else path.resolve().parent.name), path


def read_prompts(source: str, path: Path) -> Iterator[Prompt]:
    """The prompts of one JSONL file (or of the list in a .json file), in its order.

    An item is a string or an object with one of: `prompt` (a string or {"text": ...}), `question`, `instruction` (with
    the first `input` of `instances`, if any), `messages` (up to the last user turn), `turns` (user first; cut by hash
    to an odd number of at most MAX_TURNS). Raises InvalidRequest for any other item.
    """
    for place, item in items(path):
        turns = _turns(item)
        if turns is None:
            raise InvalidRequest(f"{place} holds no prompt", "prompts")
        if turns and all(turn.strip() for turn in turns):
            yield Prompt(source, f"{source}/{_digest(*turns):016x}", turns)


def distinct_prompts(path: Path, count: int, seed: int | None = None) -> list[Prompt]:
    """`count` prompts of a file, no two alike: its first ones, or those that the seed draws. Raises InvalidRequest."""
    if not path.is_file():
        raise InvalidRequest(f"no such file: {path}", "data")
    source = path.resolve().parent.name
    found = list({prompt.turns: prompt for prompt in read_prompts(source, path)}.values())
    if not 1 <= count <= len(found):
        raise InvalidRequest(f"{path} holds {len(found)} distinct prompts, {count} were asked for", "prompts")
    if seed is not None:
        found.sort(key=lambda prompt: _digest(str(seed), prompt.key))
    return found[:count]


def items(path: Path) -> Iterator[tuple[str, Any]]:
    """Parsed items, each with its place for messages."""
    if path.suffix == ".json":
        listed = _parsed(path.read_text(encoding="utf-8"), str(path))
        if not isinstance(listed, list):
            raise InvalidRequest(f"{path} holds no list", "prompts")
        yield from ((f"{path}, item {number}", item) for number, item in enumerate(listed, 1))
        return
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if line.strip():
                place = f"{path}:{number}"
                yield place, _parsed(line, place)


def _parsed(text: str, place: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise InvalidRequest(f"{place} is not JSON: {error}", "prompts") from error


def _turns(item: Any) -> tuple[str, ...] | None:
    match item:
        case str() as text:
            return (text,)
        case {"messages": [*messages]}:
            return _until_user([str(message["content"]) for message in messages if message["role"] != "system"])
        case {"turns": [*turns]} if all(isinstance(turn, str) for turn in turns):
            return _until_user(turns[: 1 + _digest(*turns) % MAX_TURNS])
        case {"instruction": str() as text, **rest}:
            return (_with_input(text, rest),)
        case {"question": str() as text} | {"prompt": str() as text} | {"prompt": {"text": str() as text}}:
            return (text,)
    return None


def _until_user(turns: Sequence[str]) -> tuple[str, ...]:
    return tuple(turns[: len(turns) - (len(turns) + 1) % 2])


def _with_input(instruction: str, rest: Mapping[Any, Any]) -> str:
    instances = rest.get("instances") or [{}]
    given = str(instances[0].get("input") or "").strip()
    return f"{instruction}\n\n{given}" if given else instruction


def split_prompts(prompts: Iterable[Prompt], seed: int, held_out: float, held_out_limit: int) -> Split:
    """Hold out about that fraction of the distinct prompts of each source, at most `held_out_limit` of each.

    Which prompts are held out depends on their text alone, so that no seed and no other file can move one to the other
    side; past the limit they are left out. Sources take turns, each in an order drawn from the seed.
    """
    training: dict[str, list[Prompt]] = {}
    judged: dict[str, list[Prompt]] = {}
    for prompt in {prompt.turns: prompt for prompt in prompts}.values():
        side = judged if is_held_out(prompt, held_out) else training
        side.setdefault(prompt.source, []).append(prompt)
    kept = {source: sorted(group, key=lambda prompt: prompt.key)[:held_out_limit] for source, group in judged.items()}
    return Split(_alternating(training, seed), _alternating(kept, seed))


def is_held_out(prompt: Prompt, fraction: float) -> bool:
    return _digest("held out", prompt.turns[0]) < fraction * 2**64


def _alternating(groups: dict[str, list[Prompt]], seed: int) -> tuple[Prompt, ...]:
    shuffled = [sorted(groups[source], key=lambda prompt: _digest(str(seed), prompt.key)) for source in sorted(groups)]
    return tuple(prompt for turn in zip_longest(*shuffled) for prompt in turn if prompt is not None)


def _digest(*texts: str) -> int:
    packed = json.dumps(texts).encode()
    return int.from_bytes(blake2b(packed, digest_size=8).digest(), "big")
