"""The check that containers run on themselves."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

from adasd.cli.processes import free_port
from adasd.rpc.health import state, tls_of
from adasd.rpc.server import Server
from adasd.rpc.tls import ServerTls
from adasd.rpc.verifier import VerifierService
from tests.rpc.test_server import LIMITS, Handler, started
from tests.rpc.test_tls import authority, signed


async def test_it_says_what_the_service_says() -> None:
    async with started(Handler()) as (server, port):
        assert await asyncio.to_thread(state, f"127.0.0.1:{port}") == "NOT_SERVING"
        await server.set_serving()
        assert await asyncio.to_thread(state, f"127.0.0.1:{port}") == "SERVING"


async def test_it_speaks_tls_with_the_services_own_certificate(tmp_path: Path) -> None:
    ca = authority(tmp_path, "ca")
    certificate, key = signed(tmp_path, "own", ca, "IP:127.0.0.1")
    for name, file in (("ca.crt", ca), ("tls.crt", certificate), ("tls.key", key)):
        (tmp_path / name).write_bytes(file.read_bytes())
    server = Server([VerifierService(Handler())], LIMITS, tls=ServerTls(certificate, key, ca))
    port = await server.start("127.0.0.1", 0)
    await server.set_serving()
    assert await asyncio.to_thread(state, f"127.0.0.1:{port}", tls_of(tmp_path)) == "SERVING"
    assert await asyncio.to_thread(state, f"127.0.0.1:{port}") == "UNAVAILABLE"
    await server.drain(0)


def test_a_service_that_is_not_there_ends_the_check_with_1() -> None:
    command = [sys.executable, "-m", "adasd.rpc.health", f"127.0.0.1:{free_port()}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr.strip()) == (1, "UNAVAILABLE")
