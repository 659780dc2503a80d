from __future__ import annotations

import os
import sys
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from adasd.bench.schedule import Load
from adasd.cli.peers import Server, asked, llama_cpp, parse_peers, start_peers
from adasd.core.errors import InvalidRequest, ServiceUnavailable
from adasd.runtime.pair import DemoPair

NOBODY = DemoPair(Path("target"), Path("draft"))
ALIKE = asked(range(64, 65), 0.8, [Load(streams=1), Load(streams=4)], [None, 4000])
ECHO = """
import json, sys
from http.server import BaseHTTPRequestHandler, HTTPServer

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/health" else 404)
        self.end_headers()

    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(200)
        self.end_headers()
        for word in (request["model"], str(request["seed"])):
            chunk = {"choices": [{"delta": {"content": word}}]}
            self.wfile.write(b"data: " + json.dumps(chunk).encode() + b"\\n\\n")
        self.wfile.write(b"data: [DONE]\\n\\n")

HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def test_a_server_is_asked_once_it_is_ready_and_ends_with_the_run(tmp_path: Path) -> None:
    server = Server("echo of words", [sys.executable, "-c", ECHO, "{port}"], "/health", {"model": "m"})
    with server.started(tmp_path) as ask:
        (child,) = (p for p in psutil.Process().children() if p.cmdline()[2:3] == [ECHO])
        reply = ask([{"role": "user", "content": "hello"}], 5)
        assert (reply.tokens, len(reply.arrivals), reply.speculation) == (2, 2, None), "without usage, pieces count"
    assert not child.is_running()


def test_a_server_that_ends_is_told_of_with_its_log(tmp_path: Path) -> None:
    server = Server("broken", [sys.executable, "-c", "raise SystemExit('no such model')"], "/health", {})
    with pytest.raises(ServiceUnavailable, match=r"(?s)broken ended with 1.*no such model"), server.started(tmp_path):
        pass


def test_llama_cpp_has_room_for_all_streams_if_its_program_is_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "llama-server"
    program.write_text("#!/bin/sh")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    server = llama_cpp(NOBODY, ALIKE)
    assert server.command[0] == str(program)
    assert server.command[-4:] == ["--parallel", "4", "--ctx-size", str(4 * (4000 + 64 + 256))]


def test_what_is_not_installed_is_said_and_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("adasd.cli.peers.find_spec", lambda name: None)
    said: list[str] = []
    with ExitStack() as stack:
        assert start_peers(["llama.cpp"], NOBODY, ALIKE, tmp_path, stack, said.append) == {}
    assert said[0].startswith("left out: llama.cpp: not installed: ")


def test_peers_by_name() -> None:
    assert parse_peers("none") == ()
    assert parse_peers("serve,llama.cpp") == ("serve", "llama.cpp")
    with pytest.raises(InvalidRequest, match="no peer 'vllm'"):
        parse_peers("serve,vllm")
