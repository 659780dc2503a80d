"""A verifier in two ranks beside one in a single process: whoever is lost of the two, streams go on at the other."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from adasd.cli.processes import Child, free_port
from adasd.cli.resuming import ResumingClient, Told
from adasd.rpc.health import state
from adasd.runtime.toy_tokenizer import write_toy_files
from tests.e2e.conftest import gauge
from tests.runtime.models import SHAPE, VOCABULARY

pytestmark = pytest.mark.slow

PATIENCE = 120.0
CONTEXT = 640
TOKENS = 400
BODY: dict[str, Any] = {
    "model": "test",
    "messages": [{"role": "user", "content": "go on"}],
    "stream": True,
    "temperature": 0,
    "max_tokens": TOKENS,
    "ignore_eos": True,
}


@dataclass
class Parts:
    """A gateway over both verifiers. group: torchrun, whose ranks are the first of the two."""

    group: Child
    addresses: list[str]
    metrics: list[str]
    gateway: str
    client: ResumingClient

    def rank(self, number: int) -> psutil.Process:
        children = psutil.Process(self.group.pid).children()
        return next(child for child in children if child.environ().get("RANK") == str(number))

    def serving(self, verifier: int) -> bool:
        return state(self.addresses[verifier], seconds=1.0) == "SERVING"

    def streams(self) -> list[float]:
        """Open at each verifier."""
        return [gauge(url, "adasd_verifier_inflight_streams") for url in self.metrics]

    def known_to_serve(self) -> float:
        """To how many verifiers the gateway sends streams: it finds one that is back a moment after that is."""
        return gauge(f"{self.gateway}/metrics", 'adasd_gateway_replicas{service="verifier",state="healthy"}')

    def wait(self, condition: Callable[[], bool]) -> float:
        """Seconds until something is so."""
        began = time.monotonic()
        while not condition():
            assert time.monotonic() < began + PATIENCE
            time.sleep(0.05)
        return time.monotonic() - began


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("target")
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(**SHAPE | {"max_position_embeddings": CONTEXT})).save_pretrained(target)
    write_toy_files(target, VOCABULARY, CONTEXT)
    return target


@pytest.fixture(scope="module")
def parts(folder: Path, redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Parts]:
    logs = tmp_path_factory.mktemp("logs")
    ports = [free_port() for _ in range(7)]
    drafter, gateway, metrics = ports[0], ports[1], [f"http://127.0.0.1:{port}/metrics" for port in ports[4:6]]
    addresses = [f"127.0.0.1:{port}" for port in ports[2:4]]
    verifiers = [
        {
            "ADASD_VERIFIER_MODEL": str(folder),
            "ADASD_VERIFIER_PORT": str(port),
            "ADASD_VERIFIER_METRICS_PORT": str(metrics_port),
            "ADASD_VERIFIER_RUNTIME__THREADS": "1",
            "OMP_NUM_THREADS": "1",
        }
        for port, metrics_port in zip(ports[2:4], ports[4:6], strict=True)
    ]
    toy = f"toy:seed=3,vocab={VOCABULARY},context={CONTEXT}"
    of_drafter = {"ADASD_DRAFTER_MODEL": toy, "ADASD_DRAFTER_PORT": str(drafter)}
    of_gateway = {
        "ADASD_GATEWAY_DRAFTER": f"127.0.0.1:{drafter}",
        "ADASD_GATEWAY_VERIFIER": ",".join(addresses),
        "ADASD_GATEWAY_PORT": str(gateway),
        "ADASD_GATEWAY_REDIS_URL": redis_url,
        "ADASD_GATEWAY_TOKENIZER": str(folder),
        "ADASD_GATEWAY_MODEL_NAME": "test",
        "ADASD_GATEWAY_PROBE_SECONDS": "0.2",
    }
    torchrun = ["-m", "torch.distributed.run", "--nproc-per-node=2", f"--master-port={ports[6]}", "--max-restarts=9"]
    torchrun += ["--monitor-interval=0.1", "--shutdown-timeout=2"]
    commands = {
        "group": ([*torchrun, "-m", "services.verifier"], verifiers[0]),
        "verifier": (["-m", "services.verifier"], verifiers[1]),
        "drafter": (["-m", "services.drafter"], of_drafter),
        "gateway": (["-m", "services.gateway"], of_gateway),
    }
    with ExitStack() as exits:
        children = {}
        for name, (command, environment) in commands.items():
            children[name] = Child(name, [sys.executable, *command], logs / f"{name}.log", environment)
            children[name].start()
            exits.callback(children[name].stop)
        exits.callback(_kill, children["group"])
        url = f"http://127.0.0.1:{gateway}"
        running = Parts(children["group"], addresses, metrics, url, ResumingClient([url]))
        running.wait(lambda: running.serving(0) and running.serving(1))
        yield running


def _kill(group: Child) -> None:
    """torchrun before its ranks, which it would start again."""
    torchrun = psutil.Process(group.pid)
    for each in [torchrun, *torchrun.children(recursive=True)]:
        with suppress(psutil.NoSuchProcess):
            each.kill()


@pytest.fixture(scope="module")
def expected(parts: Parts) -> str:
    return parts.client.converse(BODY).text


class Talk(threading.Thread):
    """An answer that is read beside others. Its `text` grows."""

    def __init__(self, client: ResumingClient) -> None:
        super().__init__()
        self._client, self.told, self.begun = client, Told(), threading.Event()

    def run(self) -> None:
        self.told = self._client.converse(BODY, lambda told: self.begun.set())


def begun(parts: Parts) -> list[Talk]:
    """An answer under way at each verifier; nothing where one has ended before it was seen, the machine being busy."""
    talks = [Talk(parts.client), Talk(parts.client)]
    for talk in talks:
        talk.start()

    def at_work() -> bool:
        return parts.streams() == [1.0, 1.0] and all(talk.begun.is_set() for talk in talks)

    parts.wait(lambda: at_work() or not all(talk.is_alive() for talk in talks))
    if all(talk.is_alive() for talk in talks):
        return talks
    for talk in talks:
        talk.join(PATIENCE)
    return []


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_a_lost_rank_moves_its_stream_and_the_group_comes_back(parts: Parts, expected: str, number: int) -> None:
    talks: list[Talk] = []
    while not talks:
        parts.wait(lambda: parts.streams() == [0.0, 0.0] and parts.known_to_serve() == 2)
        talks = begun(parts)
    lost = parts.rank(1)
    lost.send_signal(number)
    noticed = parts.wait(lambda: not parts.serving(0))
    for talk in talks:
        talk.join(PATIENCE)
    assert [(talk.told.text, talk.told.finish) for talk in talks] == [(expected, "length")] * 2
    with suppress(psutil.NoSuchProcess):
        lost.kill()  # as torchrun would, 30 s after it has told a rank to end
    back = parts.wait(lambda: parts.serving(0))
    print(f"noticed after {noticed:.2f} s; serving again {back:.2f} s after its streams had ended elsewhere")
    parts.wait(lambda: parts.streams() == [0.0, 0.0])
    assert parts.client.converse(BODY).text == expected
