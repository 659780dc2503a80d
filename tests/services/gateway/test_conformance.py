"""The gateway against its own OpenAPI document, as schemathesis reads it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import pytest
import schemathesis
import uvicorn
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import load_all_checks
from schemathesis.specs.openapi.checks import positive_data_acceptance

from services.gateway.keys import KeyRing, key_line, new_key
from services.gateway.security import Edge
from services.gateway.text import ChatText
from tests.services.gateway.conftest import gateway_of
from tests.services.gateway.test_lifecycle import until

KEY = new_key()
EXAMPLES = 12


@pytest.fixture(scope="module")
def url(redis_url: str, toy_text: ChatText) -> Iterator[str]:
    """A gateway in a thread of its own: schemathesis waits for its answers."""
    address: Future[str] = Future()
    stop = threading.Event()

    async def serve() -> None:
        async with gateway_of(redis_url, toy_text, edge=Edge(KeyRing(key_line("tester", KEY)))) as gateway:
            server = uvicorn.Server(uvicorn.Config(gateway.app, port=0, log_config=None))
            server.install_signal_handlers = lambda: None
            serving = asyncio.create_task(server.serve())
            await until(lambda: server.started)
            address.set_result(f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}")
            await asyncio.to_thread(stop.wait)
            server.should_exit = True
            await serving

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    yield address.result(60)
    stop.set()
    thread.join()


@pytest.fixture(scope="module")
def document(url: str) -> Any:
    load_all_checks()
    return schemathesis.openapi.from_url(f"{url}/openapi.json")


WITH_INPUT = [
    ("POST", "/v1/chat/completions"),
    ("POST", "/v1/completions"),
    ("POST", "/tokenize"),
    ("POST", "/detokenize"),
    ("GET", "/v1/models/{name}"),
    ("GET", "/v1/sessions/{session}"),
    ("DELETE", "/v1/sessions/{session}"),
    ("GET", "/v1/sessions/{session}/stream"),
]
WITHOUT_INPUT = [("GET", path) for path in ("/v1/models", "/healthz", "/readyz", "/version", "/metrics")]
AS_ASKED = [(*operation, GenerationMode.POSITIVE) for operation in (*WITH_INPUT, *WITHOUT_INPUT)]
OTHERWISE = [(*operation, GenerationMode.NEGATIVE) for operation in WITH_INPUT]


def test_every_operation_is_known_here(document: Any) -> None:
    documented = [operation.ok() for operation in document.get_all_operations()]
    assert {(operation.method.upper(), operation.path) for operation in documented} == {*WITH_INPUT, *WITHOUT_INPUT}


@pytest.mark.parametrize(("method", "path", "mode"), [*AS_ASKED, *OTHERWISE])
def test_replies_are_as_documented(document: Any, method: str, path: str, mode: GenerationMode) -> None:
    """No 5xx; statuses, headers and bodies as documented; what the document forbids is refused; no key, no answer.

    Not all that the document allows is accepted: it does not say which fields go together, nor how long a prompt is.
    """
    operation = document[path][method]

    @settings(max_examples=EXAMPLES, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(operation.as_strategy(generation_mode=mode))
    def conforms(case: Any) -> None:
        key = {"Authorization": f"Bearer {KEY}"}
        case.call_and_validate(headers=key, excluded_checks=[positive_data_acceptance])

    conforms()
