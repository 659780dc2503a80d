"""/v1/sessions: look at a session, take up its stream again, stop it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
from fastapi import FastAPI, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from adasd.core.context import Context
from adasd.core.density import Histogram
from adasd.core.errors import Overloaded, SessionNotFound
from adasd.state.base import StoredSession
from services.gateway.chat import Answer
from services.gateway.completion import Completion
from services.gateway.engine import Engine
from services.gateway.errors import error_response, json_response
from services.gateway.principal import principal
from services.gateway.readiness import Capacity, Readiness
from services.gateway.sessions import Session, require_models, restored
from services.gateway.telling import Telling
from services.gateway.transcript import Position

GRID = np.linspace(0.0, 1.0, 51)
"""JS distances at which the density estimates are shown."""
_SESSION_ID = re.compile(r"[0-9a-f]{32}")


def add_sessions(app: FastAPI, engine: Engine, readiness: Readiness, capacity: Capacity, resume_wait: float) -> None:
    """resume_wait: seconds a client waits for a record that is behind what the client has."""

    @app.get("/v1/sessions/{session}", response_model=None)
    async def look(request: Request, session: str) -> Response:
        return json_response(view(await engine.find(_id(session), principal(request))))

    @app.delete("/v1/sessions/{session}", response_model=None)
    async def stop(request: Request, session: str) -> Response:
        stored = await engine.find(_id(session), principal(request))
        await engine.stop(stored.record.session, "any")
        return json_response(view(await engine.find(stored.record.session, principal(request))))

    @app.get("/v1/sessions/{session}/stream", response_model=None)
    async def stream(request: Request, session: str) -> Response:
        readiness.require()
        stored = await engine.find(_id(session), principal(request))
        shown = _shown(request)
        if shown is not None:
            shown.require(stored.ids, len(stored.record.prompt))
        require_models(stored.record.models, engine.models, stored.finish_reason is not None)
        telling = Telling(engine, Session.of_record(stored.record), shown, capacity.handing_over, resume_wait)
        return ResumedAnswer(engine, telling, capacity)


class ResumedAnswer(Answer):
    """What a client has not had of a session. It counts against the gateway's capacity like a request."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        metrics = self.engine.metrics
        try:
            self._capacity.take()
        except Overloaded as error:
            metrics.refused(type(error).__name__)
            return await error_response(error)(scope, receive, send)
        metrics.inflight(self._capacity.in_hand)
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._capacity.give_back()
            metrics.inflight(self._capacity.in_hand)


def _id(session: str) -> bytes:
    if not _SESSION_ID.fullmatch(session):
        raise SessionNotFound("no such session")
    return bytes.fromhex(session)


def _shown(request: Request) -> Position | None:
    """What the client has: `Last-Event-ID`, as browsers send it, or `?from=`."""
    sources: tuple[tuple[str, Mapping[str, str]], ...] = (
        ("Last-Event-ID", request.headers),
        ("from", request.query_params),
    )
    for name, given in sources:
        if text := given.get(name):
            return Position.parse(text, name)
    return None


def view(stored: StoredSession) -> dict[str, Any]:
    """A session as its owner sees it. densities: of the JS distances of judged candidates, on `grid`."""
    session, state, context = Session.of_record(stored.record), restored(stored), Context(stored.record.prompt)
    context.extend(stored.ids[context.prompt_length :])
    posterior = state.acceptance.posterior
    return {
        "id": session.id.hex(),
        "object": "session",
        "status": stored.finish_reason or ("running" if stored.running else "interrupted"),
        "model": session.presentation.model,
        "created": session.presentation.created,
        "turn": session.turn,
        "epoch": stored.record.epoch,
        "position": str(Position.of(context)),
        "window_s": session.window,
        **Completion(session).account(state, context.generated),
        "densities": {
            "grid": GRID.tolist(),
            "accepted": _density(posterior.accepted_samples),
            "rejected": _density(posterior.rejected_samples),
        },
    }


def _density(samples: Histogram) -> dict[str, Any]:
    """density: None without samples."""
    density = [float(np.exp(samples.log_density(x))) for x in GRID] if samples.n else None
    return {"samples": samples.n, "bandwidth": samples.bandwidth, "density": density}
