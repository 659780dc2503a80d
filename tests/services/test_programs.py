"""`python -m services.drafter` and `python -m services.verifier`, as processes."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
import urllib.request
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from adasd.core.adaptive import AcceptanceState
from adasd.core.context import Context
from adasd.core.errors import ServiceUnavailable
from adasd.rpc.verifier import VerifierConnection
from services.environment import read_settings
from services.gateway.remote_verifier import VerifierClient
from services.gateway.settings import GatewaySettings
from tests.rpc.test_server import health
from tests.rpc.test_tls import Certificates
from tests.services.replicas import LIMITS, NOTHING, PROMPT, SAMPLING, TARGET, new_session, verify_request

PATIENCE = 60.0


class Program:
    """A service as a child process, and what it has logged."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.log = ""

    async def logged(self, pattern: str) -> str:
        """Wait for a line that matches; the first group."""
        assert self.process.stderr is not None
        async with asyncio.timeout(PATIENCE):
            while (found := re.search(pattern, self.log)) is None:
                line = await self.process.stderr.readline()
                assert line, f"the program ended without {pattern!r}:\n{self.log}"
                self.log += line.decode()
        return found.group(1)

    async def ended(self) -> int:
        assert self.process.stderr is not None
        async with asyncio.timeout(PATIENCE):
            self.log += (await self.process.stderr.read()).decode()
            return await self.process.wait()


@asynccontextmanager
async def program(service: str, **settings: str) -> AsyncIterator[Program]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ADASD_")}
    environment |= {f"ADASD_{service.upper()}_{name}": value for name, value in settings.items()}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", f"services.{service}", env=environment, stderr=PIPE
    )
    try:
        yield Program(process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


LISTENING = r"listening on 127\.0\.0\.1:(\d+)"


async def test_both_ends_speak_tls_if_their_settings_say_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pki = Certificates(tmp_path)
    server = {"TLS__CERTIFICATE": pki.server[0], "TLS__KEY": pki.server[1], "TLS__CLIENT_CA": pki.ca}
    client = {"TLS__ROOT": pki.ca, "TLS__CERTIFICATE": pki.client[0], "TLS__KEY": pki.client[1], "TOKENIZER": tmp_path}
    async with program("verifier", MODEL=TARGET, PORT="0", **{name: str(path) for name, path in server.items()}) as run:
        address = f"127.0.0.1:{await run.logged(LISTENING)}"
        await run.logged(r"(Verifier serving)")
        for name, value in {**client, "DRAFTER": address, "VERIFIER": address, "REDIS_URL": "unix:///nowhere"}.items():
            monkeypatch.setenv(f"ADASD_GATEWAY_{name}", str(value))
        verifiers = VerifierClient(read_settings(GatewaySettings).remote)
        verifier = verifiers.open(new_session(), SAMPLING, "exact")
        verdict = await verifier.verify(Context(PROMPT), NOTHING, AcceptanceState(), 0)
        assert len(verdict.tokens) == 1
        await verifier.close()
        await verifiers.close()
        stranger = VerifierConnection(address, LIMITS)
        with pytest.raises(ServiceUnavailable, match="asked in plain text"):
            await stranger.info(PATIENCE)
        await stranger.close()


async def test_sigterm_drains_the_running_stream_and_exits_with_0() -> None:
    async with program("verifier", MODEL=TARGET + ",delay_ms=300", PORT="0") as verifier:
        port = int(await verifier.logged(LISTENING))
        await verifier.logged(r"(Verifier serving)")
        assert await health(port) == "SERVING"
        connection = VerifierConnection(f"127.0.0.1:{port}", LIMITS)
        stream = connection.open()
        stream.send(verify_request(Context(PROMPT)))
        await stream.receive()
        stream.send(verify_request(Context(PROMPT), round_number=1))
        verifier.process.send_signal(signal.SIGTERM)
        await verifier.logged(r"(draining)")
        assert (await stream.receive()).round_number == 1
        await stream.close()
        await connection.close()
        assert await verifier.ended() == 0


async def test_streams_that_outlive_the_grace_are_cut() -> None:
    async with program("verifier", MODEL=TARGET, PORT="0", GRACE_SECONDS="0.1") as verifier:
        port = int(await verifier.logged(LISTENING))
        await verifier.logged(r"(Verifier serving)")
        connection = VerifierConnection(f"127.0.0.1:{port}", LIMITS)
        stream = connection.open()
        stream.send(verify_request(Context(PROMPT)))
        await stream.receive()
        verifier.process.send_signal(signal.SIGTERM)
        with pytest.raises(ServiceUnavailable):
            await stream.receive()
        await connection.close()
        assert await verifier.ended() == 0


async def test_metrics_are_served_and_settings_logged_once() -> None:
    async with program("drafter", MODEL="toy:seed=1", PORT="0", METRICS_PORT="0") as drafter:
        await drafter.logged(r"(Drafter serving)")
        port = await drafter.logged(r"metrics on 127\.0\.0\.1:(\d+)")
        text = await asyncio.to_thread(
            lambda: urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics").read().decode()
        )
        assert "adasd_drafter_inflight_streams 0.0" in text
        drafter.process.send_signal(signal.SIGINT)
        assert await drafter.ended() == 0
    assert drafter.log.count("settings:") == 1
    assert '"model":"toy:seed=1"' in drafter.log


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"MODEL": "toy:", "MODLE": "x"}, "ADASD_DRAFTER_MODLE"),
        ({}, "ADASD_DRAFTER_MODEL"),
        ({"MODEL": "toy:speed=9", "PORT": "0"}, "unknown key 'speed'"),
        ({"MODEL": "toy:vocab=300", "PORT": "0", "MAX_VOCABULARY": "299"}, "sized for 299"),
    ],
)
async def test_what_cannot_be_served_ends_with_one_line_that_says_why(settings: dict[str, str], reason: str) -> None:
    async with program("drafter", **settings) as drafter:
        assert await drafter.ended() == 1
    assert reason in drafter.log.splitlines()[-1]
    assert "Traceback" not in drafter.log
