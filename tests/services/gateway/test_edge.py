"""Long prompts beside the loop: whoever asks for /healthz, or reads slowly, notices nothing of them."""

from __future__ import annotations

import asyncio
import threading

import httpx
import pytest
import uvicorn

from adasd.bench.edge import HEAD, Edge
from adasd.cli.edge import table
from services.gateway.admission import PromptLimits
from services.gateway.control_tokens import PromptEncoder
from tests.services.gateway.conftest import Gateway
from tests.services.gateway.test_lifecycle import PATIENCE, until

SIZE = 5_000_000


@pytest.fixture
def roomy(gateway: Gateway) -> Gateway:
    """Takes bodies of twice that size, whatever comes of them."""
    object.__setattr__(gateway.services.bodies, "limit", 2 * SIZE)
    object.__setattr__(gateway.services.admission, "limits", PromptLimits(characters=2 * SIZE))
    return gateway


async def test_healthz_answers_while_prompts_are_tokenised(roomy: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as there are threads for it, while streams are open that nobody reads."""
    inside, release, encode = threading.Semaphore(0), threading.Event(), PromptEncoder.encode

    def held(encoder: PromptEncoder, prompt: str) -> list[int]:
        inside.release()
        assert release.wait(PATIENCE)
        return encode(encoder, prompt[:100])

    roomy.peers.held = {3: asyncio.Event()}
    streams = [asyncio.create_task(roomy.post(stream=True, temperature=0)) for _ in range(2)]
    await until(lambda: roomy.peers.open == 4)
    monkeypatch.setattr(PromptEncoder, "encode", held)
    ask = {"prompt": "a" * SIZE}
    tokenising = [asyncio.create_task(roomy.client.post("/tokenize", json=ask)) for _ in range(2)]
    for _ in tokenising:
        assert await asyncio.to_thread(inside.acquire, timeout=PATIENCE)
    for _ in range(20):
        assert (await roomy.client.get("/healthz")).status_code == 200
    assert not any(task.done() for task in (*tokenising, *streams))
    release.set()
    roomy.peers.held[3].set()
    assert [(await task).status_code for task in (*tokenising, *streams)] == [200] * 4


async def test_the_measurement(roomy: Gateway) -> None:
    """`adasd edge` over a real socket: every probe is answered, long prompts are refused, slow readers let go."""
    server = uvicorn.Server(uvicorn.Config(roomy.app, port=0, log_config=None, timeout_graceful_shutdown=1))
    serving = asyncio.create_task(server.serve())
    await until(lambda: server.started)
    url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    written = await asyncio.to_thread(table, Edge(url, "toy", readers=2, posters=1, prompt_bytes=SIZE), 1.0)
    lines = written.removeprefix(HEAD).strip().splitlines()
    assert [line.split(" | ")[0] for line in lines[:2]] == ["| nothing", "| 2 readers of a byte a second"]
    assert "x 400)" in lines[2]
    for line in lines:
        name, probes, *figures, failed = line.strip("| ").split(" | ")
        assert (int(probes) > 0, len(figures), failed) == (True, 3, "0"), name
    async with httpx.AsyncClient(base_url=url) as client:
        await until(lambda: roomy.services.capacity.in_hand == 0)
        assert (await client.get("/healthz")).status_code == 200
    server.should_exit = True
    await serving
