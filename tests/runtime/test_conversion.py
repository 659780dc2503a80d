"""Folders made once: interrupted, damaged, and wanted by two processes at once."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from adasd.runtime.conversion import MANIFEST, find_damage, make_once

CONTENT = {"weights.bin": b"w" * 5000, "tokens/vocabulary.json": b"{}"}


class Source:
    """Writes the files and counts how often."""

    def __init__(self) -> None:
        self.made = 0

    def __call__(self, folder: Path) -> None:
        self.made += 1
        for name, content in CONTENT.items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_bytes(content)


@pytest.fixture
def source() -> Source:
    return Source()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "models" / "made"


def test_it_is_made_once(folder: Path, source: Source) -> None:
    make_once(folder, source)
    make_once(folder, source, hashes=True)
    assert source.made == 1
    assert {name: (folder / name).read_bytes() for name in CONTENT} == CONTENT
    assert find_damage(folder, hashes=True) is None


def test_nothing_is_left_beside_it(folder: Path, source: Source) -> None:
    make_once(folder, source)
    assert [path.name for path in folder.parent.iterdir() if path.is_dir()] == ["made"]


def test_an_interrupted_attempt_leaves_no_folder_and_is_redone(folder: Path, source: Source) -> None:
    def interrupted(part: Path) -> None:
        source(part)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make_once(folder, interrupted)
    assert not folder.exists()
    make_once(folder, source)
    assert source.made == 2
    assert find_damage(folder, hashes=True) is None


KILLED = """
import os, sys
from pathlib import Path
from adasd.runtime.conversion import make_once

def fill(part):
    (part / "half").write_bytes(b"half")
    os._exit(9)

make_once(Path(sys.argv[1]), fill)
"""


def test_a_killed_attempt_leaves_nothing_that_stays(folder: Path, source: Source) -> None:
    assert subprocess.run([sys.executable, "-c", KILLED, str(folder)], check=False).returncode == 9
    assert not folder.exists()
    make_once(folder, source)
    assert find_damage(folder, hashes=True) is None
    assert not (folder / "half").exists()
    assert [path.name for path in folder.parent.iterdir() if path.is_dir()] == ["made"]


def truncate(folder: Path) -> None:
    (folder / "weights.bin").write_bytes(b"w" * 4000)


def remove(folder: Path) -> None:
    (folder / "tokens/vocabulary.json").unlink()


def lose_manifest(folder: Path) -> None:
    (folder / MANIFEST).unlink()


def tear_manifest(folder: Path) -> None:
    (folder / MANIFEST).write_text('{"version": 1, "fil')


def age(folder: Path) -> None:
    manifest = json.loads((folder / MANIFEST).read_text())
    (folder / MANIFEST).write_text(json.dumps(manifest | {"version": 0}))


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (truncate, "weights.bin has 4000 bytes instead of 5000"),
        (remove, "vocabulary.json is missing"),
        (lose_manifest, "no usable manifest.json"),
        (tear_manifest, "no usable manifest.json"),
        (age, "made by version 0"),
    ],
)
def test_damage_is_named_and_repaired(folder: Path, source: Source, damage: Callable[[Path], None], words: str) -> None:
    make_once(folder, source)
    damage(folder)
    assert words in str(find_damage(folder))
    make_once(folder, source)
    assert source.made == 2
    assert find_damage(folder, hashes=True) is None


def test_a_flipped_bit_takes_the_hashes_to_find(folder: Path, source: Source) -> None:
    make_once(folder, source)
    (folder / "weights.bin").write_bytes(b"w" * 4999 + b"v")
    assert find_damage(folder) is None
    assert find_damage(folder, hashes=True) == "weights.bin does not have its sha256"
    make_once(folder, source, hashes=True)
    assert find_damage(folder, hashes=True) is None


RACER = """
import sys, time
from pathlib import Path
from adasd.runtime.conversion import find_damage, make_once

folder, log = Path(sys.argv[1]), Path(sys.argv[2])

def fill(part):
    with log.open("a") as lines:
        lines.write("made\\n")
    (part / "weights.bin").write_bytes(b"w" * 100)
    time.sleep(1)
    (part / "weights.bin").write_bytes(b"w" * 5000)

make_once(folder, fill)
sys.exit(find_damage(folder, hashes=True) is not None)
"""


def test_of_processes_that_race_one_makes_it(folder: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    racers = [subprocess.Popen([sys.executable, "-c", RACER, str(folder), str(log)]) for _ in range(3)]
    assert [racer.wait(120) for racer in racers] == [0, 0, 0]
    assert log.read_text() == "made\n"
