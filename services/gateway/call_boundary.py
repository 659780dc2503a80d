"""Where an answer with calls ends, and what of it is told."""

from __future__ import annotations

from collections.abc import Sequence

from adasd.core.types import FinishReason
from services.gateway.boundary import Boundary
from services.gateway.call_formats import FORMATS
from services.gateway.call_reader import CallReader
from services.gateway.detokenizer import Detokenizer
from services.gateway.parts import Part
from services.gateway.request import GenerationRequest


class CallBoundary(Boundary):
    """As `Boundary`, of a text that may hold calls; where only one is wanted, the text ends with it."""

    def __init__(self, request: GenerationRequest, max_tokens: int, detokenizer: Detokenizer) -> None:
        super().__init__(request.eos_ids, request.stop, max_tokens, detokenizer)
        assert request.calls is not None, "calls are read where there may be some"
        self._reader = CallReader(FORMATS[request.calls.form], request.calls.names, request.calls.parallel)
        self._parts: list[tuple[Part, ...]] = []

    def take_parts(self, pieces: Sequence[str]) -> tuple[tuple[Part, ...], ...]:
        taken, self._parts = tuple(self._parts), []
        return taken

    def told_reason(self, finish: FinishReason) -> str:
        """Calls that are not whole are none to carry out."""
        return "tool_calls" if finish == "stop" and self._reader.complete else finish

    def _advance(self, token: int) -> FinishReason | None:
        finish = super()._advance(token)
        self._reader.read(self._pieces[-1])
        if self._reader.over:
            finish = "stop"
        if finish is not None:
            self._reader.end()
        self._parts.append(self._reader.take())
        return finish


def boundary_of(request: GenerationRequest, max_tokens: int, detokenizer: Detokenizer) -> Boundary:
    """max_tokens: at least 1."""
    if request.calls is None:
        return Boundary(request.eos_ids, request.stop, max_tokens, detokenizer)
    return CallBoundary(request, max_tokens, detokenizer)
