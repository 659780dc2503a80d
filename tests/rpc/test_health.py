"""The check that containers run on themselves."""

from __future__ import annotations

import asyncio
import subprocess
import sys

from adasd.cli.processes import free_port
from adasd.rpc.health import state
from tests.rpc.test_server import Handler, started


async def test_it_says_what_the_service_says() -> None:
    async with started(Handler()) as (server, port):
        assert await asyncio.to_thread(state, f"127.0.0.1:{port}") == "NOT_SERVING"
        await server.set_serving()
        assert await asyncio.to_thread(state, f"127.0.0.1:{port}") == "SERVING"


def test_a_service_that_is_not_there_ends_the_check_with_1() -> None:
    command = [sys.executable, "-m", "adasd.rpc.health", f"127.0.0.1:{free_port()}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr.strip()) == (1, "UNAVAILABLE")
