"""Processes that compute on the same cores: one pass at a time.

Two passes side by side, each with a thread a core, wait for one another's threads at every operation: measured, both
take two to three times as long as one after the other.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from adasd.core.errors import InvalidRequest

PATIENCE = 1.0
"""Seconds to wait for the others at most: one of them may have been stopped in the middle of a pass. Only once: until
it goes on, nobody waits for it again."""
LOOK_SECONDS = 0.0002
START, START_LOOK_SECONDS = 60.0, 0.01
"""Seconds that a service which has loaded its model waits for those that have not, at most."""


class SharedCores:
    """path: of a file that all processes on these cores lock for their passes; None has the cores alone.

    Open for as long as the process, which lets go by ending. Raises InvalidRequest for a path where no file can be.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        try:
            self._turn = None if path is None else _Lock(path)
            self._next = None if path is None else _Lock(path.with_name(f"{path.name}.next"))
        except OSError as error:
            raise InvalidRequest(f"shared_cores {path}: {error}", "shared_cores") from None

    @contextmanager
    def loading(self) -> Iterator[None]:
        """While a model is loaded, which takes all cores for seconds."""
        with self._start(fcntl.LOCK_SH):
            yield

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """While nobody loads a model or measures here: for what is to be measured. Not waited for longer than START."""
        with self._start(fcntl.LOCK_EX):
            yield

    @contextmanager
    def _start(self, kind: int) -> Iterator[None]:
        if self._path is None:
            yield
            return
        file = _opened(self._path.with_name(f"{self._path.name}.loading"))
        try:
            give_up = time.monotonic() + START
            while not _locked(file, kind) and time.monotonic() < give_up:
                time.sleep(START_LOOK_SECONDS)
            yield
        finally:
            os.close(file)  # which unlocks it

    @contextmanager
    def taken(self) -> Iterator[None]:
        """For a pass, in turn: whoever has just had one lets the next one that waits go first. Whoever waits longer
        than PATIENCE goes on as if alone.
        """
        if self._turn is None or self._next is None:
            yield
            return
        self._next.take()
        self._turn.take()
        self._next.leave()
        try:
            yield
        finally:
            self._turn.leave()


class _Lock:
    """Of one process at a time, which lets go by ending. Waited for PATIENCE at most; then not at all until it can be
    had again.
    """

    def __init__(self, path: Path) -> None:
        self._file = _opened(path)
        self._patience = PATIENCE

    def take(self) -> None:
        """Have it, or go on without."""
        give_up = time.monotonic() + self._patience
        while not (had := _locked(self._file, fcntl.LOCK_EX)) and time.monotonic() < give_up:
            time.sleep(LOOK_SECONDS)
        self._patience = PATIENCE if had else 0.0

    def leave(self) -> None:
        """Let others have it. Nothing happens if it was not had."""
        fcntl.flock(self._file, fcntl.LOCK_UN)


def _opened(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT, 0o600)


def _locked(file: int, kind: int) -> bool:
    """Whether it could be had at once."""
    with suppress(BlockingIOError):
        fcntl.flock(file, kind | fcntl.LOCK_NB)
        return True
    return False
