"""/v1/sessions: look at a session, take up its stream again, stop it."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
from fastapi import FastAPI, Request
from starlette.responses import Response

from adasd.core.context import Context
from adasd.core.density import Histogram
from adasd.core.errors import Conflict, SessionNotFound
from adasd.state.base import StoredSession
from services.gateway.chat import Answer
from services.gateway.choices import Choice
from services.gateway.completion import account
from services.gateway.documentation import OF_SESSION, replies, stream_replies
from services.gateway.engine import Engine
from services.gateway.errors import json_response
from services.gateway.metrics import Outcome
from services.gateway.readiness import Capacity, Readiness
from services.gateway.replies import SessionView
from services.gateway.security import principal_of
from services.gateway.sessions import Session, restored
from services.gateway.telling import Telling
from services.gateway.transcript import POSITION_PATTERN, Position

GRID = np.linspace(0.0, 1.0, 51)
"""JS distances at which the density estimates are shown."""
SESSION_PATH = "/v1/sessions/{session}"
LAST_EVENT, FROM = "Last-Event-ID", "from"
"""Where a client says what it has: as browsers send it, or in the address."""
POSITION_PARAMETERS = [
    {"name": name, "in": place, "schema": {"type": "string", "pattern": f"^{POSITION_PATTERN}$"}}
    for name, place in ((LAST_EVENT, "header"), (FROM, "query"))
]
_SESSION_ID = re.compile(r"[0-9a-f]{32}")


def add_sessions(app: FastAPI, engine: Engine, readiness: Readiness, capacity: Capacity, resume_wait: float) -> None:
    """resume_wait: seconds a client waits for a record that is behind what the client has."""

    async def found(request: Request, session: str) -> StoredSession:
        return await engine.find(_id(session), principal_of(request.scope))

    def shown(stored: StoredSession) -> Response:
        return json_response(view(engine.session(stored.record), stored))

    @app.get(SESSION_PATH, responses=replies(SessionView, OF_SESSION), response_model=None)
    async def look(request: Request, session: str) -> Response:
        return shown(await found(request, session))

    @app.delete(SESSION_PATH, responses=replies(SessionView, OF_SESSION), response_model=None)
    async def stop(request: Request, session: str) -> Response:
        stored = await found(request, session)
        await engine.stop(stored.record.session, "any")
        return shown(await found(request, session))

    @app.get(
        f"{SESSION_PATH}/stream",
        responses=stream_replies(),
        openapi_extra={"parameters": POSITION_PARAMETERS},
        response_model=None,
    )
    async def stream(request: Request, session: str) -> Response:
        arrived = time.perf_counter()
        readiness.require()
        stored = await found(request, session)
        position = _position(request)
        if position is not None:
            position.require(stored.ids, len(stored.record.prompt))
        engine.require_unchanged(stored)
        here = engine.session(stored.record)
        if not here.resumable:
            raise Conflict("an answer with log-probabilities or several choices cannot be taken up again")
        telling = Telling(engine, here, position, capacity.handing_over, resume_wait, arrived)
        return ResumedAnswer(engine, telling, capacity)


class ResumedAnswer(Answer):
    """What a client has not had of a session. It counts against the gateway's capacity like a request."""

    def __init__(self, engine: Engine, telling: Telling, capacity: Capacity) -> None:
        super().__init__(engine, [Choice(engine, telling)], capacity, places=1)

    def finished(self, outcome: Outcome) -> None:
        self.engine.metrics.resumed(outcome)


def _id(session: str) -> bytes:
    if not _SESSION_ID.fullmatch(session):
        raise SessionNotFound("no such session")
    return bytes.fromhex(session)


def _position(request: Request) -> Position | None:
    """What the client has."""
    sources: tuple[tuple[str, Mapping[str, str]], ...] = (
        (LAST_EVENT, request.headers),
        (FROM, request.query_params),
    )
    for name, given in sources:
        if text := given.get(name):
            return Position.parse(text, name)
    return None


def view(session: Session, stored: StoredSession) -> dict[str, Any]:
    """A session as its owner sees it. densities: of the JS distances of judged candidates, on `grid`."""
    state, context = restored(stored), Context(stored.record.prompt)
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
        **account([session], [state], context.generated),
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
