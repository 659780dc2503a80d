"""Ports for children: nobody takes one between its choice and the moment its child listens."""

from __future__ import annotations

import os
import socket

import pytest

from adasd.cli.processes import QUIET_PORTS, free_port


def test_a_process_gives_out_no_port_twice_until_all_have_had_their_turn() -> None:
    ports = [free_port() for _ in range(150)]
    assert len(set(ports)) == len(ports)
    assert set(ports) <= set(QUIET_PORTS)


def test_processes_choose_from_ports_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def chosen(process: int) -> set[int]:
        monkeypatch.setattr(os, "getpid", lambda: process)
        return {free_port() for _ in range(150)}

    first, *others = [chosen(process) for process in (4000, 4001, 4003, 4060)]
    assert all(first.isdisjoint(other) for other in others)


def test_a_port_that_is_taken_is_passed_over() -> None:
    taken = free_port()
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", taken))
        listening.listen()
        assert taken not in {free_port() for _ in range(400)}
