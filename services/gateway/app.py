"""The gateway's HTTP interface: OpenAI's chat completions, models, probes, metrics, and a page to try it all."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from importlib import resources
from typing import Any

from fastapi import FastAPI, Request
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from adasd.core.errors import AdasdError, ModelNotFound
from services.gateway.admission import Admission
from services.gateway.chat import ChatAnswer
from services.gateway.engine import Engine
from services.gateway.errors import error_response, http_error_response, json_response
from services.gateway.middleware import Bounded, RequestLog
from services.gateway.principal import principal
from services.gateway.readiness import Capacity, Readiness
from services.gateway.schema import ChatRequest
from services.gateway.session_routes import add_sessions
from services.gateway.telling import Telling

CHAT_PATH = "/v1/chat/completions"
PROBES = ("/healthz", "/readyz", "/metrics")
CLIENT_GONE_STATUS = 499
PAGE_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'; img-src data:"
)
_CHAT_DOCUMENTATION = {
    "requestBody": {"required": True, "content": {"application/json": {"schema": ChatRequest.model_json_schema()}}}
}


@dataclass(frozen=True, slots=True)
class GatewayServices:
    """All that the interface works with, built by whoever runs it. probe_seconds: between two looks at the services.

    resume_wait: seconds that a client who comes back waits for a record that is behind what he has.
    """

    engine: Engine
    admission: Admission
    readiness: Readiness
    capacity: Capacity
    max_body_bytes: int = 4 * 2**20
    probe_seconds: float = 1.0
    resume_wait: float = 30.0


def create_app(services: GatewayServices) -> FastAPI:
    """The ASGI application. It takes chat requests once every part has answered."""
    middleware = [
        Middleware(RequestLog, quiet=PROBES),
        Middleware(Bounded, path=CHAT_PATH, capacity=services.capacity, metrics=services.engine.metrics),
    ]
    app = FastAPI(
        title="AdaSD gateway",
        lifespan=lambda _: _probing(services),
        middleware=middleware,
        docs_url=None,  # they load scripts from elsewhere
        redoc_url=None,
    )
    app.exception_handler(AdasdError)(_domain_error)
    app.exception_handler(HTTPException)(_http_error)
    app.exception_handler(ClientDisconnect)(_client_gone)
    _add_chat(app, services)
    add_sessions(app, services.engine, services.readiness, services.capacity, services.resume_wait)
    _add_models(app, services)
    _add_probes(app, services)
    _add_page(app)
    return app


@asynccontextmanager
async def _probing(services: GatewayServices) -> AsyncIterator[None]:
    watch = asyncio.create_task(services.readiness.watch(services.probe_seconds))
    yield
    watch.cancel()
    with suppress(asyncio.CancelledError):
        await watch


def _add_chat(app: FastAPI, services: GatewayServices) -> None:
    engine, metrics = services.engine, services.engine.metrics

    @app.post(CHAT_PATH, openapi_extra=_CHAT_DOCUMENTATION, response_model=None)
    async def chat_completions(request: Request) -> Response:
        arrived = time.perf_counter()
        try:
            services.readiness.require()
            target = engine.peers.target
            assert target is not None, "ready means that the verifier has answered"
            body = await _read(request, services.max_body_bytes)
            admitted = await asyncio.to_thread(services.admission.admit, body, target)
            turn = await engine.turn(admitted, principal(request))
        except (AdasdError, HTTPException) as error:
            metrics.refused(type(error).__name__)
            raise
        metrics.admitted(len(admitted.generation.prompt))
        telling = Telling(engine, turn.session, None, services.capacity.handing_over, services.resume_wait)
        return ChatAnswer(engine, turn, telling, services.capacity, admitted.chat.stream, arrived)


async def _read(request: Request, limit: int) -> bytes:
    """The body, never more of it than `limit` bytes."""
    declared = request.headers.get("content-length", "")
    body = bytearray()
    if not (declared.isdigit() and int(declared) > limit):
        async for chunk in request.stream():
            body += chunk
            if len(body) > limit:
                break
        else:
            return bytes(body)
    raise HTTPException(413, f"the body is larger than {limit} bytes")


def _add_models(app: FastAPI, services: GatewayServices) -> None:
    created, names, peers = int(time.time()), services.admission.names, services.engine.peers

    def entry(name: str) -> dict[str, Any]:
        length = peers.target.context_length if peers.target else None
        return {"id": name, "object": "model", "created": created, "owned_by": "adasd", "max_model_len": length}

    @app.get("/v1/models", response_model=None)
    async def models() -> Response:
        return json_response({"object": "list", "data": [entry(name) for name in names]})

    @app.get("/v1/models/{name:path}", response_model=None)
    async def model(name: str) -> Response:
        if name not in names:
            raise ModelNotFound(f"no model {name!r} here; served: {', '.join(names)}", "model")
        return json_response(entry(name))


def _add_probes(app: FastAPI, services: GatewayServices) -> None:
    readiness, metrics = services.readiness, services.engine.metrics

    @app.get("/healthz", response_model=None)
    async def healthz() -> Response:
        return json_response({"status": "alive"})

    @app.get("/readyz", response_model=None)
    async def readyz() -> Response:
        if not readiness.ready:
            return error_response(readiness.unavailable(), problems=readiness.problems)
        return json_response({"status": "ready", "problems": readiness.problems})

    @app.get("/metrics", response_model=None)
    async def metrics_page() -> Response:
        return Response(metrics.exposition(), headers={"Content-Type": CONTENT_TYPE_LATEST})


def _add_page(app: FastAPI) -> None:
    page = resources.files("services.gateway").joinpath("page.html").read_bytes()

    @app.get("/", response_model=None, include_in_schema=False)
    async def index() -> Response:
        return Response(page, media_type="text/html", headers={"Content-Security-Policy": PAGE_POLICY})


async def _domain_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, AdasdError)
    return error_response(error)


async def _http_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return http_error_response(error)


async def _client_gone(_: Request, __: Exception) -> Response:
    return Response(status_code=CLIENT_GONE_STATUS)
