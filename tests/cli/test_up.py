"""`adasd up` and `adasd chat` as a user runs them, with a toy pair."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from adasd.cli.stack import HUGE_PAGES

ADASD = Path(sys.executable).parent / "adasd"
TARGET = "toy:seed=1,vocab=48,eos_bias=-8"
UP = [ADASD, "up", "--target", TARGET, "--draft", TARGET + ",mix=0.2,stranger=5"]


def wait_for(process: subprocess.Popen[str], log: Path, pattern: str) -> str:
    """The first group of the pattern, once the program has printed it."""
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline and process.poll() is None:
        if found := re.search(pattern, log.read_text()):
            return found.group(1)
        time.sleep(0.1)
    raise AssertionError(log.read_text())


Start = Callable[..., tuple[subprocess.Popen[str], Path]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[subprocess.Popen[str]] = []

    def begin(*arguments: str) -> tuple[subprocess.Popen[str], Path]:
        log = tmp_path / f"up-{len(started)}.log"
        with log.open("w") as output:
            command = [*UP, *arguments, "--logs", str(tmp_path / "logs")]
            started.append(subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, text=True))
        return started[-1], log

    yield begin
    for process in started:
        process.terminate()
        process.wait(60)


def chat(url: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [ADASD, "chat", "--url", url, *arguments], capture_output=True, text=True, timeout=60, check=False
    )


TUNABLES = set(HUGE_PAGES["GLIBC_TUNABLES"].split(":"))


def asked_for(child: psutil.Process) -> set[str]:
    """What a program asks of glibc, which ends each word where it has read it: by a 0 in place of the colon."""
    words = Path(f"/proc/{child.pid}/environ").read_bytes().replace(b"\0", b"=").replace(b":", b"=").decode()
    return {word for word in TUNABLES if f"={word}=" in words}


def test_from_up_to_an_answered_chat_and_down_again(start: Start, tmp_path: Path) -> None:
    process, log = start("--port", "0")
    url = wait_for(process, log, r"ready\s+(http://\S+)")
    answered = chat(url, "hello", "--max-tokens", "20", "--temperature", "0")
    assert answered.returncode == 0, answered.stderr
    assert re.search(r"20 tokens, [\d.]+ tokens/s, acceptance \d+%, mean length [\d.]+", answered.stdout)
    trace = tmp_path / "trace.json"
    traced = chat(url, "hello", "--max-tokens", "20", "--trace", str(trace))
    assert "next block: commit |" in traced.stdout
    assert {event["name"] for event in json.loads(trace.read_text())["traceEvents"]} >= {"round 0", "verify", "commit"}
    refused = chat(url, "hello", "--temperature=-1")
    assert refused.returncode == 1
    assert "temperature" in refused.stderr

    services = {child.cmdline()[-1]: child for child in psutil.Process(process.pid).children()}
    paged = {name for name, child in services.items() if asked_for(child) == TUNABLES}
    assert paged == {"services.drafter", "services.verifier"}
    os.kill(services["services.drafter"].pid, signal.SIGKILL)
    assert wait_for(process, log, r"the (\w+) ended and was started again") == "drafter"
    assert chat(url, "hello", "--max-tokens", "5").returncode == 0

    family = psutil.Process(process.pid).children(recursive=True)
    for number in [signal.SIGINT, signal.SIGTERM] * 100:  # an impatient user, and a shell that forwards what it gets
        process.send_signal(number)
    assert process.wait(60) == 0, log.read_text()
    _, alive = psutil.wait_procs(family, timeout=20)
    assert not alive


def test_its_children_end_with_it_however_it_ends(start: Start) -> None:
    process, log = start("--port", "0")
    wait_for(process, log, r"ready\s+(http://\S+)")
    family = psutil.Process(process.pid).children(recursive=True)
    assert len(family) >= 4
    process.kill()
    _, alive = psutil.wait_procs(family, timeout=40)
    assert not alive


def test_a_taken_port_is_named(start: Start) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        process, log = start("--port", port)
        assert process.wait(60) == 1
    assert port in log.read_text()


def test_one_model_of_a_pair_is_refused(tmp_path: Path) -> None:
    done = subprocess.run([ADASD, "up", "--target", TARGET], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "--draft" in done.stdout + done.stderr


def test_chat_without_a_server_says_what_to_do() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        done = chat(f"http://127.0.0.1:{unused.getsockname()[1]}", "hello")
    assert done.returncode == 1
    assert "adasd up" in done.stderr
