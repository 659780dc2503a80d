"""Drafter and verifier as the gateway finds them: what they have loaded, and one connection a generation."""

from __future__ import annotations

from typing import Protocol

from adasd.core.messages import ModelInfo
from services.gateway.ports import Drafter, Verifier
from services.gateway.request import GenerationRequest


class Peers(Protocol):
    """target, draft: what verifier and drafter last said of themselves; None before they answered."""

    @property
    def target(self) -> ModelInfo | None: ...

    @property
    def draft(self) -> ModelInfo | None: ...

    def drafter(self, request: GenerationRequest) -> Drafter:
        """The drafter for one generation. Never fails: without a drafter its rounds have no candidates."""
        ...

    def verifier(self, request: GenerationRequest) -> Verifier:
        """The verifier for one generation. Connects with the first round."""
        ...
