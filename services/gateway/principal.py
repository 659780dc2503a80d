"""Whose a request is."""

from __future__ import annotations

from starlette.requests import Request


def principal(request: Request) -> str:
    """The owner of what the request makes, and of what it may see: `request.state.principal`, as whoever
    authenticates requests has set it. Opaque; "" stands for everybody without a name.
    """
    return str(getattr(request.state, "principal", ""))
