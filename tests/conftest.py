"""Real parts that several packages' tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from adasd.state.embedded import EmbeddedRedis


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    """One real Redis for the whole run. Sessions have random ids, so tests do not meet in it."""
    with EmbeddedRedis() as redis:
        yield redis.url
