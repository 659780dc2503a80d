"""The gateway's HTTP interface: OpenAI's chats and completions, models, probes, metrics, and a page to try it all."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from importlib import resources
from typing import Any

from fastapi import FastAPI, Request
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from adasd import __version__
from adasd.core.errors import AdasdError
from adasd.core.messages import ModelInfo
from services.gateway.admission import Admission, Admitted
from services.gateway.body import Bodies
from services.gateway.chat import Answer
from services.gateway.choices import Choice
from services.gateway.completions_schema import CompletionRequest
from services.gateway.documentation import (
    OF_GATE,
    answer_replies,
    body_of,
    complete,
    readiness_replies,
    replies,
    text_replies,
)
from services.gateway.engine import Engine
from services.gateway.errors import error_response, http_error_response, json_response
from services.gateway.middleware import Bounded, RequestLog
from services.gateway.readiness import Capacity, Readiness
from services.gateway.replies import (
    Alive,
    ChatCompletion,
    ChatCompletionChunk,
    Model,
    ModelList,
    TextCompletion,
    TextCompletionChunk,
    Version,
)
from services.gateway.schema import ChatRequest
from services.gateway.security import METRICS_PATH, Edge, Gate, SecureHeaders, principal_of
from services.gateway.session_routes import add_sessions
from services.gateway.telling import Telling
from services.gateway.tokenizing import TOKENIZER_PATHS, add_tokenizer
from services.gateway.traces import TracedRequests
from services.tracing import OFF

CHAT_PATH, COMPLETIONS_PATH = "/v1/chat/completions", "/v1/completions"
BOUNDED = (CHAT_PATH, COMPLETIONS_PATH, *TOKENIZER_PATHS)
PROBES = ("/healthz", "/readyz", METRICS_PATH)
CLIENT_GONE_STATUS = 499
PAGE_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'; img-src data:"
)


@dataclass(frozen=True, slots=True)
class GatewayServices:
    """All that the interface works with, built by whoever runs it. probe_seconds: between two looks at the services.

    resume_wait: seconds that a client who comes back waits for a record that is behind what he has.
    """

    engine: Engine
    admission: Admission
    readiness: Readiness
    capacity: Capacity
    bodies: Bodies = field(default_factory=Bodies)
    edge: Edge = field(default_factory=Edge)
    probe_seconds: float = 1.0
    resume_wait: float = 30.0


def create_app(services: GatewayServices) -> FastAPI:
    """The ASGI application. It takes chat requests once every part has answered."""
    app = FastAPI(
        title="AdaSD gateway",
        lifespan=lambda _: _probing(services),
        middleware=_middleware(services),
        docs_url=None,  # they load scripts from elsewhere
        redoc_url=None,
        telemetry={"tracing": False, "metrics": False, "logs": False, "auto_configure": False},  # it keeps whole URLs
        redirect_slashes=False,  # a redirect is no error body
    )
    app.exception_handler(AdasdError)(_domain_error)
    app.exception_handler(HTTPException)(_http_error)
    app.exception_handler(ClientDisconnect)(_client_gone)
    _add_generation(app, services)
    add_sessions(app, services.engine, services.readiness, services.capacity, services.resume_wait)
    _add_models(app, services)
    add_tokenizer(app, services.admission, services.bodies, services.engine.peers)
    _add_probes(app, services)
    _add_page(app)
    complete(app.openapi(), services.edge.keys.required, services.edge.open_paths)
    return app


def _middleware(services: GatewayServices) -> list[Middleware]:
    """The outermost first: whoever may not ask costs no place among the requests in hand."""
    metrics, tracing = services.engine.metrics, services.engine.tracing
    traced = [] if tracing is OFF else [Middleware(TracedRequests, tracing=tracing, quiet=(*PROBES, "/"))]
    return [
        *traced,
        Middleware(SecureHeaders),
        Middleware(RequestLog, quiet=PROBES),
        *services.edge.cors,
        Middleware(Gate, edge=services.edge, metrics=metrics),
        Middleware(Bounded, paths=BOUNDED, capacity=services.capacity, metrics=metrics),
    ]


@asynccontextmanager
async def _probing(services: GatewayServices) -> AsyncIterator[None]:
    watch = asyncio.create_task(services.readiness.watch(services.probe_seconds))
    yield
    watch.cancel()
    with suppress(asyncio.CancelledError):
        await watch


def _add_generation(app: FastAPI, services: GatewayServices) -> None:
    names, admission = services.admission.names, services.admission

    @app.post(
        CHAT_PATH,
        openapi_extra=body_of(ChatRequest, names),
        responses=answer_replies(ChatCompletion, ChatCompletionChunk),
        response_model=None,
    )
    async def chat_completions(request: Request) -> Response:
        return await _answer(services, request, admission.admit)

    @app.post(
        COMPLETIONS_PATH,
        openapi_extra=body_of(CompletionRequest, names),
        responses=answer_replies(TextCompletion, TextCompletionChunk),
        response_model=None,
    )
    async def completions(request: Request) -> Response:
        return await _answer(services, request, admission.admit_completion)


async def _answer(
    services: GatewayServices, request: Request, admit: Callable[[bytes, ModelInfo], Admitted]
) -> Response:
    """The answer to a request, all of whose choices can begin. admit: of its interface."""
    arrived, engine, metrics = time.perf_counter(), services.engine, services.engine.metrics
    try:
        services.readiness.require()
        target = engine.peers.target
        assert target is not None, "ready means that the verifier has answered"
        with engine.tracing.span("read body"):
            body = await services.bodies.read(request)
        with engine.tracing.span("tokenise"):
            admitted = await services.bodies.work(admit, body, target)
        turns = await engine.turns(admitted, principal_of(request.scope))
    except (AdasdError, HTTPException) as error:
        metrics.refused(type(error).__name__)
        raise
    metrics.admitted(admitted.prompt_tokens)
    handing_over = services.capacity.handing_over
    choices = [
        Choice(engine, Telling(engine, turn.session, None, handing_over, services.resume_wait, arrived), turn)
        for turn in turns
    ]
    return Answer(engine, choices, services.capacity, admitted.asked.stream, len(choices) - 1)


def _add_models(app: FastAPI, services: GatewayServices) -> None:
    created, names, peers = int(time.time()), services.admission.names, services.engine.peers

    def entry(name: str) -> dict[str, Any]:
        length = peers.target.context_length if peers.target else None
        return {"id": name, "object": "model", "created": created, "owned_by": "adasd", "max_model_len": length}

    @app.get("/v1/models", responses=replies(ModelList, OF_GATE), response_model=None)
    async def models() -> Response:
        return json_response({"object": "list", "data": [entry(name) for name in names]})

    @app.get("/v1/models/{name:path}", responses=replies(Model, (*OF_GATE, 404)), response_model=None)
    async def model(name: str) -> Response:
        services.admission.require_model(name)
        return json_response(entry(name))


def _add_probes(app: FastAPI, services: GatewayServices) -> None:
    readiness, metrics = services.readiness, services.engine.metrics

    @app.get("/healthz", responses=replies(Alive), response_model=None)
    async def healthz() -> Response:
        return json_response({"status": "alive"})

    @app.get("/readyz", responses=readiness_replies(), response_model=None)
    async def readyz() -> Response:
        if not readiness.ready:
            return error_response(readiness.unavailable(), problems=readiness.problems)
        return json_response({"status": "ready", "problems": readiness.problems})

    @app.get("/version", responses=replies(Version), response_model=None)
    async def version() -> Response:
        return json_response({"version": __version__})

    @app.get(METRICS_PATH, responses=text_replies(), response_model=None)
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
