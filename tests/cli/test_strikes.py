"""What the chaos run's parts promise: wires that keep order, and a desk that waits."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from random import Random

import pytest

from adasd.cli.findings import Case
from adasd.cli.network import Network
from adasd.cli.resuming import Told
from adasd.cli.strikes import Desk

KNOWN = [Case(rule, {}, Told()) for rule in ("greedy", "coupled", "adasd", "anchored")]


@pytest.fixture
def echo() -> Iterator[int]:
    """The port of a server that sends back what it gets."""
    listening = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            threading.Thread(target=answer, args=(connection,), daemon=True).start()

    def answer(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            while data := connection.recv(4096):
                connection.sendall(data)

    threading.Thread(target=serve, daemon=True).start()
    yield listening.getsockname()[1]
    listening.shutdown(socket.SHUT_RDWR)
    listening.close()


def test_a_wire_passes_slows_silences_and_cuts(echo: int) -> None:
    with Network() as network:
        port = network.add("echo", ("127.0.0.1", echo))
        with socket.create_connection(("127.0.0.1", port), timeout=30) as client:
            client.sendall(b"one")
            assert client.recv(9) == b"one"
            network.slow("echo", 0.02)
            sent = b"".join(b"%d," % n for n in range(200))
            client.sendall(sent)
            heard = b""
            while len(heard) < len(sent):
                heard += client.recv(64)
            assert heard == sent
            network.slow("echo", 0.0)
            network.silence("echo")
            client.sendall(b"two")
            client.settimeout(0.3)
            with pytest.raises(TimeoutError):
                client.recv(9)
            network.restore("echo")
            client.settimeout(30)
            assert client.recv(9) == b"two"
            network.cut("echo")
            with pytest.raises(ConnectionResetError):
                client.recv(9)
        with socket.create_connection(("127.0.0.1", port), timeout=30) as client:
            client.sendall(b"three")
            assert client.recv(9) == b"three"


def test_a_wire_to_nobody_is_broken_at_once() -> None:
    with socket.socket() as unused, Network() as network:
        unused.bind(("127.0.0.1", 0))
        port = network.add("nobody", unused.getsockname())
        with pytest.raises(ConnectionResetError), socket.create_connection(("127.0.0.1", port), timeout=30) as client:
            client.recv(9)


def test_without_drafters_only_the_targets_own_texts_are_asked_for() -> None:
    desk, random, began = Desk(KNOWN), Random(0), threading.Event()

    def alone() -> None:
        with desk.without_drafters():
            began.set()
            time.sleep(0.3)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(random, "choice", lambda cases: cases[-1])
        with desk.case(random) as case:
            assert case.rule == "anchored"
            waiting = threading.Thread(target=alone)
            waiting.start()
            assert not began.wait(0.2), "one that needs a drafter is under way"
            with desk.case(random) as other:
                assert other.rule == "coupled", "no further one begins"
        assert began.wait(30)
        with desk.case(random) as case:
            assert case.rule == "coupled"
        waiting.join()
        with desk.case(random) as case:
            assert case.rule == "anchored"
