"""Hundreds of clients that leave in mid-answer leave nothing behind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from tests.e2e.conftest import DRAFTS, TOY, Served, serve

WARM_UP, MEASURED, AT_A_TIME = 200, 300, 4
MOST_BYTES_A_REQUEST = 10_000
SPARE_HANDLES = 4
"""Idle connections, which come and go."""


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory, redis_url: str, toy_tokenizer: Path) -> Iterator[Served]:
    """Answers take long enough to be left."""
    delay = ",delay_ms=2"
    yield from serve(tmp_path_factory.mktemp("left"), redis_url, DRAFTS["between"] + delay, TOY + delay, toy_tokenizer)


def abort(served: Served, count: int) -> None:
    """So many answers that are left after their first or second text."""

    def leave(n: int) -> None:
        messages = [{"role": "user", "content": f"go on {n}"}]
        body = {"model": served.model, "messages": messages, "stream": True, "max_tokens": 500, "seed": n}
        with served.client.stream("POST", "/v1/chat/completions", json=body) as reply:
            texts = (line for line in reply.iter_lines() if '"content":"' in line and '"content":""' not in line)
            for _ in range(1 + n % 2):
                next(texts, None)

    with ThreadPoolExecutor(AT_A_TIME) as pool:
        list(pool.map(leave, range(count)))
    assert set(served.wait_idle().values()) == {0.0}


def each(served: Served, of: Callable[[psutil.Process], int]) -> dict[str, int]:
    return {name: of(psutil.Process(child.pid)) for name, child in served.stack.children.items()}


def resident(process: psutil.Process) -> int:
    return int(process.memory_info().rss)


@pytest.mark.slow
def test_aborted_requests_leave_no_memory_and_no_handles(slow: Served) -> None:
    abort(slow, WARM_UP)  # replicas keep what the last sessions had
    memory, handles = each(slow, resident), each(slow, psutil.Process.num_fds)
    abort(slow, MEASURED)
    grown = {name: (after - memory[name]) / MEASURED for name, after in each(slow, resident).items()}
    assert max(grown.values()) < MOST_BYTES_A_REQUEST, grown
    opened = {name: after - handles[name] for name, after in each(slow, psutil.Process.num_fds).items()}
    assert max(opened.values()) <= SPARE_HANDLES, opened
    assert slow.answer(max_tokens=3, ignore_eos=True)["usage"]["completion_tokens"] == 3
