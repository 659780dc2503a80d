"""The rules of a request: the server's own, but for what its client asked for."""

from __future__ import annotations

from dataclasses import dataclass

from adasd.core.errors import InvalidRequest
from services.gateway.schema import Speculation


@dataclass(frozen=True, slots=True)
class Rules:
    """How to draft and accept. max_candidates: bound on a block; None leaves it to the stopping rule.

    copying: whether candidates may come from the text itself, under a rule that weighs their costs; others do not copy.
    """

    stopping: str = "marginal"
    acceptance: str = "adasd-anchored"
    max_candidates: int | None = None
    copying: bool = True

    def overridden(self, asked: Speculation) -> Rules:
        """These rules, but for what the client asked for. Another stopping rule brings its own block length.

        Raises InvalidRequest for copying under a rule that does not weigh it.
        """
        stopping = asked.stopping or self.stopping
        if asked.copying and stopping != "marginal":
            raise InvalidRequest(f"stopping {stopping!r} copies nothing; 'marginal' does", "speculation.copying")
        copying = self.copying if asked.copying is None else asked.copying
        inherited = self.max_candidates if stopping == self.stopping else None
        candidates = inherited if asked.max_candidates is None else asked.max_candidates
        return Rules(stopping, asked.acceptance or self.acceptance, candidates, copying)
