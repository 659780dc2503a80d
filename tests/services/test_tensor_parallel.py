"""The verifier in two processes under torchrun, on CPUs: it answers as one process does, and outlives its ranks."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from adasd.cli.processes import free_port
from adasd.core.adaptive import AcceptanceState
from adasd.core.context import Context
from adasd.core.errors import AdasdError, ServiceUnavailable
from adasd.core.messages import VerifyRequest
from adasd.core.rows import PointRow
from adasd.core.types import Draft, SamplingParams
from adasd.rpc.verifier import VerifierConnection
from adasd.runtime.loading import load_model
from adasd.runtime.options import RuntimeOptions
from adasd.runtime.replica import Replica
from adasd.runtime.toy_tokenizer import write_toy_files
from tests.runtime.models import CONTEXT, VOCABULARY, model
from tests.services.replicas import LIMITS, NOTHING, delta, new_session

pytestmark = pytest.mark.slow

PATIENCE = 120.0
STREAMS = 12
SHARED = 17
"""Positions that prompts begin alike with: more than are read rather than copied."""
GREEDY = SamplingParams(temperature=0.0)

Asked = list[tuple[VerifyRequest, tuple[int, ...]]]


class Verifier:
    """A verifier in two ranks, as torchrun keeps it up."""

    def __init__(self, torchrun: psutil.Process, port: int, log: Path) -> None:
        self._torchrun, self._port, self._log = torchrun, port, log

    def said(self) -> str:
        """All that it has written so far."""
        return self._log.read_text(errors="replace")

    def rank(self, number: int) -> psutil.Process:
        children = self._torchrun.children()
        return next(child for child in children if child.environ().get("RANK") == str(number))

    async def serving(self) -> VerifierConnection:
        """A connection, once it serves."""
        connection = VerifierConnection(f"127.0.0.1:{self._port}", LIMITS)
        async with asyncio.timeout(PATIENCE):
            while True:
                with suppress(AdasdError):
                    await connection.info(1.0)
                    return connection
                await asyncio.sleep(0.1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("target")
    model("llama").save_pretrained(target)
    write_toy_files(target, VOCABULARY, CONTEXT)
    return target


@pytest.fixture(scope="module")
def verifier(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Verifier]:
    """Every test finds it serving or about to, and may end its ranks; no process is left behind."""
    log = tmp_path_factory.mktemp("log") / "verifier.log"
    port, environment = free_port(), {name: v for name, v in os.environ.items() if not name.startswith("ADASD_")}
    environment |= {
        "ADASD_VERIFIER_MODEL": str(folder),
        "ADASD_VERIFIER_PORT": str(port),
        "ADASD_VERIFIER_RUNTIME__HEARTBEAT_SECONDS": "3",
        "OMP_NUM_THREADS": "1",
    }
    ranks = ["--nproc-per-node=2", f"--master-port={free_port()}", "--max-restarts=9", "--monitor-interval=0.1"]
    command = [sys.executable, "-m", "torch.distributed.run", *ranks, "-m", "tests.services.hanging_verifier"]
    with (
        log.open("wb") as output,
        subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
        ) as process,
    ):
        torchrun = psutil.Process(process.pid)
        try:
            yield Verifier(torchrun, port, log)
        finally:
            for each in [torchrun, *torchrun.children(recursive=True)]:
                with suppress(psutil.NoSuchProcess):
                    each.kill()


def generation(replica: Replica[Any], prompt: list[int], rounds: int = 5) -> Asked:
    """What is asked in one generation and what one process answers. Every second block goes wrong in its middle."""
    session, context, asked = new_session(), Context(prompt), []
    for number in range(rounds):
        ahead = Context(context.ids)
        for _ in range(3):
            ahead.extend(replica.verify(_request(ahead, NOTHING, bytes(16), 0)).tokens)
        ids = list(ahead.ids[context.base :])
        ids[1] = (ids[1] + number % 2) % VOCABULARY
        block = Draft(tuple(ids), (0.0,) * len(ids), tuple(map(PointRow, ids)))
        request = _request(context, block, session, number)
        verdict = replica.verify(request)
        assert verdict.accepted == (1 if number % 2 else 3)
        asked.append((request, verdict.tokens))
        context.extend(verdict.tokens)
    return asked


def _request(context: Context, block: Draft, session: bytes, number: int) -> VerifyRequest:
    return VerifyRequest(delta(context, 0, session), GREEDY, block, "exact", AcceptanceState().pack(), number)


@pytest.fixture(scope="module")
def asked(folder: Path) -> list[Asked]:
    replica = Replica(*load_model(str(folder), "target", RuntimeOptions()))
    generator = np.random.default_rng(1)
    shared = generator.integers(1, VOCABULARY, SHARED).tolist()
    prompts = [[*shared, *generator.integers(1, VOCABULARY, 10).tolist()] for _ in range(STREAMS)]
    return [generation(replica, prompt) for prompt in prompts]


async def generate(connection: VerifierConnection, asked: Asked) -> None:
    stream = connection.open()
    for request, expected in asked:
        stream.send(request)
        assert (await stream.receive()).verdict.tokens == expected
    await stream.close()


async def ended(process: psutil.Process) -> None:
    await asyncio.to_thread(process.wait, PATIENCE)


async def test_ranks_answer_as_one_process_does(verifier: Verifier, asked: list[Asked]) -> None:
    """Blocks that are rolled back, streams that share batches, and sessions that begin as others did."""
    connection = await verifier.serving()
    await generate(connection, asked[0])
    await asyncio.gather(*(generate(connection, each) for each in asked))
    await connection.close()


async def test_a_killed_rank_ends_the_group_which_starts_again(verifier: Verifier, asked: list[Asked]) -> None:
    connection = await verifier.serving()
    await generate(connection, asked[1])
    serving = verifier.rank(0)
    verifier.rank(1).kill()
    await ended(serving)
    await connection.close()
    connection = await verifier.serving()
    await generate(connection, asked[1])
    await connection.close()


async def test_a_rank_that_hangs_within_a_pass_and_stamps_on_ends_the_group(
    verifier: Verifier, asked: list[Asked]
) -> None:
    connection = await verifier.serving()
    serving = verifier.rank(0)
    verifier.rank(1).send_signal(signal.SIGUSR1)
    with pytest.raises(ServiceUnavailable):
        await generate(connection, asked[3])
    await ended(serving)
    assert "rank 1 is silent, or stuck in operation" in verifier.said()
    await connection.close()
    connection = await verifier.serving()
    await generate(connection, asked[3])
    await connection.close()


async def test_a_rank_that_stands_still_ends_the_group_and_nobody_hangs(verifier: Verifier, asked: list[Asked]) -> None:
    connection = await verifier.serving()
    serving, other = verifier.rank(0), verifier.rank(1)
    other.send_signal(signal.SIGSTOP)
    with pytest.raises(ServiceUnavailable):
        await generate(connection, asked[2])
    await ended(serving)
    await connection.close()
