"""Request bodies, bounded in size and in time, and work on them beside the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import partial
from typing import ParamSpec, TypeVar

from starlette.exceptions import HTTPException
from starlette.requests import Request

P = ParamSpec("P")
T = TypeVar("T")


def _few_threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(2, thread_name_prefix="text")


@dataclass(frozen=True, slots=True)
class Bodies:
    """limit: bytes. seconds: for a client to send all of it; until then it holds a place among the requests in hand.

    threads: where bodies are parsed and tokenised. Few: each one more makes the event loop wait longer for its turn at
    the interpreter, and health checks with it.
    """

    limit: int = 4 * 2**20
    seconds: float = 30.0
    threads: ThreadPoolExecutor = field(default_factory=_few_threads)

    async def read(self, request: Request) -> bytes:
        """The body, never more of it than the limit. Raises HTTPException 415, 413 or 408.

        A page from elsewhere may send text without being asked for its origin first, but not JSON.
        """
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise HTTPException(415, "the body must be JSON, with the header Content-Type: application/json")
        declared = request.headers.get("content-length", "")
        if declared.isdecimal() and int(declared[:20]) > self.limit:
            raise self._too_large()
        try:
            async with asyncio.timeout(self.seconds):
                return await self._received(request)
        except TimeoutError:
            raise HTTPException(408, f"the body did not arrive within {self.seconds:g} s") from None

    async def work(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run beside the event loop; waits its turn."""
        call = partial(copy_context().run, function, *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(self.threads, call)

    async def _received(self, request: Request) -> bytes:
        body = bytearray()
        async for chunk in request.stream():
            body += chunk
            if len(body) > self.limit:
                raise self._too_large()
        return bytes(body)

    def _too_large(self) -> HTTPException:
        return HTTPException(413, f"the body is larger than {self.limit} bytes")
