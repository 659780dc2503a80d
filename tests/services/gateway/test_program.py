"""The gateway as a program: its settings, its page, and how it ends."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import httpx
import pytest
import uvicorn

from adasd.core.errors import InvalidRequest
from adasd.rpc.tls import ServerTls
from adasd.runtime.toy import ToySpec, write_toy_model
from services.environment import read_settings
from services.gateway.__main__ import _store
from services.gateway.metrics import GatewayMetrics
from services.gateway.rules import Rules
from services.gateway.schema import Speculation
from services.gateway.security import LOOPBACK_HOSTS
from services.gateway.server import DrainingServer, https_options
from services.gateway.settings import GatewaySettings
from services.tracing import OFF
from tests.rpc.test_tls import Certificates
from tests.services.gateway.conftest import Gateway
from tests.services.gateway.test_lifecycle import until

REQUIRED = {
    "ADASD_GATEWAY_DRAFTER": "127.0.0.1:1, 127.0.0.1:2",
    "ADASD_GATEWAY_VERIFIER": "127.0.0.1:3",
    "ADASD_GATEWAY_REDIS_URL": "redis://:secret@127.0.0.1:4",
    "ADASD_GATEWAY_TOKENIZER": "/models/some-model",
}


def settings(monkeypatch: pytest.MonkeyPatch, **variables: str) -> GatewaySettings:
    for name, value in {
        **REQUIRED,
        **{f"ADASD_GATEWAY_{key.upper()}": value for key, value in variables.items()},
    }.items():
        monkeypatch.setenv(name, value)
    return read_settings(GatewaySettings)


def test_settings_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    read = settings(monkeypatch, model_aliases="a, b", stopping="fixed", max_candidates="3", store__ttl="60")
    assert read.names == ("some-model", "a", "b")
    assert read.rules == Rules("fixed", "adasd-anchored", 3)
    assert read.remote.drafter == ("127.0.0.1:1", "127.0.0.1:2")
    assert read.store.ttl == 60
    assert "secret" not in read.model_dump_json()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("port", "http"),
        ("port", "70000"),
        ("max_candidates", "65"),
        ("prot", "1"),
        ("workers", "2"),
        ("store__ttl", "x"),
    ],
)
def test_wrong_settings_are_refused_by_name(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    with pytest.raises(InvalidRequest, match=f"ADASD_GATEWAY_{name.upper()}"):
        settings(monkeypatch, **{name: value})


@pytest.mark.parametrize(
    "url", ["redis+cluster://:secret@one:6379", "redis+sentinel://:secret@one", "http://:secret@x"]
)
def test_a_redis_url_of_another_kind_is_refused_by_name(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    with pytest.raises(InvalidRequest, match="redis_url: ") as refused:
        _store(settings(monkeypatch, redis_url=url), GatewayMetrics(), OFF)
    assert "secret" not in str(refused.value)


def test_an_open_gateway_on_loopback_answers_to_its_own_names_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    assert settings(monkeypatch, host="127.0.0.2").allowed_hosts == (*LOOPBACK_HOSTS, "127.0.0.2")
    assert settings(monkeypatch, host="0.0.0.0").allowed_hosts == ()
    assert settings(monkeypatch, host="::1", keys="").allowed_hosts == ()
    assert settings(monkeypatch, host="::1", hosts="A.example, b").allowed_hosts == ("a.example", "b")


def test_a_request_overrides_the_rules_it_names() -> None:
    server = Rules("adasd", "exact", 8)
    assert server.overridden(Speculation()) == server
    assert server.overridden(Speculation(acceptance="coupled")) == Rules("adasd", "coupled", 8)
    assert server.overridden(Speculation(stopping="fixed")) == Rules("fixed", "exact", None)
    assert server.overridden(Speculation(stopping="off")) == Rules("off", "exact", None)
    assert server.overridden(Speculation(max_candidates=2)) == Rules("adasd", "exact", 2)


async def test_the_page_needs_nothing_from_elsewhere(gateway: Gateway) -> None:
    reply = await gateway.client.get("/")
    assert reply.status_code == 200
    assert reply.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in reply.headers["content-security-policy"]
    assert not re.search(r"""(?:src|href)=["'](?!data:)|https?://|@import|url\(""", reply.text)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Program:
    """A gateway process without any service behind it."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.port = free_port()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "services.gateway"],
            env={**os.environ, **REQUIRED, "ADASD_GATEWAY_PORT": str(self.port), **environment},
            stderr=subprocess.PIPE,
            text=True,
        )

    def get(self, path: str) -> httpx.Response:
        for _ in range(300):
            try:
                return httpx.get(f"http://127.0.0.1:{self.port}{path}")
            except httpx.ConnectError:
                assert self.process.poll() is None, self.process.communicate()[1]
                time.sleep(0.1)
        raise AssertionError("the gateway never listened")

    def end(self) -> str:
        """What it wrote by its end."""
        return self.process.communicate(timeout=30)[1]


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    write_toy_model(tmp_path / "toy", ToySpec())
    return tmp_path / "toy"


async def test_https_and_certificates_of_clients(gateway: Gateway, tmp_path: Path) -> None:
    pki = Certificates(tmp_path)
    options = https_options(ServerTls(*pki.server, pki.ca))
    server = uvicorn.Server(uvicorn.Config(gateway.app, port=0, log_config=None, **options))
    serving = asyncio.create_task(server.serve())
    await until(lambda: server.started)
    url = f"https://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/healthz"
    known = ssl.create_default_context(cafile=pki.ca)
    known.load_cert_chain(*pki.client)
    async with httpx.AsyncClient(verify=known) as client:
        assert (await client.get(url)).status_code == 200
    async with httpx.AsyncClient(verify=ssl.create_default_context(cafile=pki.ca)) as client:
        with pytest.raises(httpx.TransportError):
            await client.get(url)
    server.should_exit = True
    await serving
    assert https_options(ServerTls()) == {}


def test_an_open_gateway_that_others_can_reach_says_so(tokenizer: Path) -> None:
    for host, keys, warned in (
        ("0.0.0.0", {}, True),
        ("0.0.0.0", {"ADASD_GATEWAY_KEYS": ""}, False),
        (None, {}, False),
    ):
        where = {"ADASD_GATEWAY_HOST": host} if host else {}
        program = Program({"ADASD_GATEWAY_TOKENIZER": str(tokenizer), **where, **keys})
        try:
            assert program.get("/v1/models").status_code == (401 if keys else 200)
        finally:
            program.process.send_signal(signal.SIGTERM)
            written = program.end()
        assert ("anybody may use this" in written) == warned


def test_the_program_is_alive_before_it_is_ready_and_ends_well(tokenizer: Path) -> None:
    program = Program({"ADASD_GATEWAY_TOKENIZER": str(tokenizer)})
    try:
        assert program.get("/healthz").status_code == 200
        ready = program.get("/readyz")
        assert ready.status_code == 503
        assert ready.json()["problems"].keys() == {"verifier", "drafter", "redis"}
        assert [model["id"] for model in program.get("/v1/models").json()["data"]] == ["toy"]
        chat = {"model": "toy", "messages": [{"role": "user", "content": "hi"}]}
        assert httpx.post(f"http://127.0.0.1:{program.port}/v1/chat/completions", json=chat).status_code == 503
    finally:
        program.process.send_signal(signal.SIGTERM)
        written = program.end()
    assert program.process.returncode == 0, written
    assert "Traceback" not in written
    assert "costs of late, as a cost_profile: {" in written


@pytest.mark.parametrize(
    ("variables", "complaint"),
    [
        ({"ADASD_GATEWAY_TOKENIZER": "/nowhere"}, "no tokenizer.json"),
        ({"ADASD_GATEWAY_STOPPNG": "off"}, "ADASD_GATEWAY_STOPPNG"),
        ({"ADASD_GATEWAY_STOPPING": "always"}, "unknown stopping rule 'always'"),
        ({"ADASD_GATEWAY_COST_PROFILE": "/nowhere"}, "cost_profile /nowhere"),
        ({"ADASD_GATEWAY_KEYS": "alice"}, "line 1: must be name:sha256"),
        ({"ADASD_GATEWAY_KEYS_FILE": "/nowhere"}, "the key file cannot be read"),
        ({"ADASD_GATEWAY_TLS__CERTIFICATE": "/nowhere"}, "certificate and key go together"),
        ({"ADASD_GATEWAY_TLS__ROOT": "/nowhere"}, "/nowhere holds no certificates"),
    ],
)
def test_what_cannot_be_served_is_said_in_one_line(variables: dict[str, str], complaint: str) -> None:
    program = Program(variables)
    written = program.end()
    assert program.process.returncode == 1
    assert complaint in written.splitlines()[-1]
    assert "Traceback" not in written


async def test_the_server_drains_then_ends(gateway: Gateway) -> None:
    gateway.peers.held = {1: asyncio.Event()}
    services = gateway.services
    config = uvicorn.Config(gateway.app, port=0, log_config=None)
    server = DrainingServer(config, services.readiness, services.capacity, grace=20.0)
    serving = asyncio.create_task(server.serve())
    await until(lambda: server.started)
    url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    async with httpx.AsyncClient(base_url=url) as client:
        body = {"model": "toy", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
        running = asyncio.create_task(client.post("/v1/chat/completions", json=body))
        await until(lambda: gateway.peers.open == 2)
        server.handle_exit(signal.SIGTERM, None)
        await until(lambda: services.readiness.draining)
        assert (await client.get("/readyz")).status_code == 503
        assert (await client.post("/v1/chat/completions", json=body)).status_code == 503
        assert not serving.done()
        gateway.peers.held[1].set()
        assert (await running).status_code == 200
    await serving


async def test_a_second_signal_does_not_wait(gateway: Gateway) -> None:
    gateway.peers.held = {1: asyncio.Event()}
    services = gateway.services
    server = DrainingServer(
        uvicorn.Config(gateway.app, port=0, log_config=None), services.readiness, services.capacity, grace=600.0
    )
    serving = asyncio.create_task(server.serve())
    await until(lambda: server.started)
    answer = asyncio.create_task(gateway.post())
    await until(lambda: gateway.peers.open == 2)
    for _ in range(2):
        server.handle_exit(signal.SIGINT, None)
    async with asyncio.timeout(20):
        await serving
        assert (await answer).status_code == 503
