"""Folders that are made once and kept: written beside their place, checked, then renamed into it."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

from filelock import FileLock

MANIFEST = "manifest.json"
MANIFEST_VERSION = 1

Fill = Callable[[Path], None]
"""Writes the files of a folder that exists and is empty."""


def find_damage(folder: Path, hashes: bool = False) -> str | None:
    """What is wrong with a folder that `make_once` made, in words; None if nothing is.

    Compares the files with their sizes in the manifest, with `hashes` also with their sha256 (reads everything).
    """
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        files: dict[str, dict[str, Any]] = manifest["files"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"no usable {MANIFEST}: {error}"
    if manifest["version"] != MANIFEST_VERSION:
        return f"made by version {manifest['version']}, this is {MANIFEST_VERSION}"
    for name, expected in files.items():
        file = folder / name
        if not file.is_file():
            return f"{name} is missing"
        if file.stat().st_size != expected["bytes"]:
            return f"{name} has {file.stat().st_size} bytes instead of {expected['bytes']}"
        if hashes and file_sha256(file) != expected["sha256"]:
            return f"{name} does not have its sha256"
    return None


def make_once(folder: Path, fill: Fill, hashes: bool = False) -> None:
    """Make sure that `folder` holds what `fill` wrote, undamaged (see `find_damage`).

    An interrupted attempt leaves no folder, a damaged folder is made anew, and of several processes one does the work
    while the others wait for it.
    """
    if find_damage(folder, hashes) is None:
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.parent / f".{folder.name}.lock"):
        if find_damage(folder, hashes) is not None:
            _make(folder, fill)


def _make(folder: Path, fill: Fill) -> None:
    with _workspace(folder) as part:
        fill(part)
        _seal(part)
        if folder.exists():
            shutil.rmtree(folder)
        part.rename(folder)
        _sync(folder.parent)


@contextmanager
def _workspace(folder: Path) -> Iterator[Path]:
    """An empty folder beside `folder`. The lock is held, so whatever an earlier attempt left is nobody's."""
    part = folder.parent / f".{folder.name}.part"
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir()
    try:
        yield part
    finally:
        shutil.rmtree(part, ignore_errors=True)  # renamed away by now, unless something failed


def _seal(folder: Path) -> None:
    """Bring every file to the disk and write down what it must look like."""
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    for file in files:
        file.chmod(0o644)  # safetensors writes for the owner only; a cache is shared with containers
        _sync(file)
    entries = {
        str(file.relative_to(folder)): {"bytes": file.stat().st_size, "sha256": file_sha256(file)} for file in files
    }
    manifest = folder / MANIFEST
    manifest.write_text(json.dumps({"version": MANIFEST_VERSION, "files": entries}, indent=2) + "\n", encoding="utf-8")
    _sync(manifest)
    _sync(folder)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def file_sha256(file: Path) -> str:
    """sha256 of a file's bytes, hex."""
    digest = sha256()
    with file.open("rb") as stream:
        while block := stream.read(2**20):
            digest.update(block)
    return digest.hexdigest()
