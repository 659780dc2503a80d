"""Real parts that several packages' tests share."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from adasd.state.embedded import EmbeddedRedis

os.environ.setdefault("GOMP_SPINCOUNT", "0")  # threads that wait would keep other workers' tests from the cores

pytest_plugins = ["tests.elsewhere"]

settings.register_profile("whatever the machine", deadline=None)
settings.load_profile("whatever the machine")


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    """One real Redis for the whole run. Sessions have random ids, so tests do not meet in it."""
    with EmbeddedRedis() as redis:
        yield redis.url


@pytest.fixture
def memory_path() -> Iterator[Path]:
    """A folder in memory where there is one: for data that is written out before every answer."""
    memory = "/dev/shm"
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as folder:
        yield Path(folder)
