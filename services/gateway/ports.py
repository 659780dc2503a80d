"""What the decoding loop knows of the world: three Protocols. Neither HTTP, nor gRPC, nor Redis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from adasd.core.adaptive import AcceptanceState
from adasd.core.context import Context
from adasd.core.course import Course
from adasd.core.messages import Judged, Timing
from adasd.core.types import Draft, DraftPlan
from adasd.core.verdicts import Verdict


class Drafter(Protocol):
    """The drafter as one generation sees it. A failure is never the request's: it is a round without candidates.

    timing: what the replica told of its time for the last candidates.
    """

    @property
    def timing(self) -> Timing: ...

    def prefill(self, context: Context) -> None:
        """Start reading the context in the background, beside the verifier's first pass."""
        ...

    async def propose(self, context: Context, plan: DraftPlan, round_number: int) -> Draft:
        """Candidates after `context.base`; empty if the plan says 0 or no drafter answers."""
        ...

    async def close(self) -> None:
        """End the stream; the drafter forgets the session."""
        ...


class Verifier(Protocol):
    """The verifier as one generation sees it. timing: what the replica told of its time for the last verdict.

    drafts: whether a drafter of this generation's is beside it, which may be asked for a block with the verdict.
    drafting: what it told of its time for the last one.
    """

    @property
    def timing(self) -> Timing: ...

    @property
    def drafting(self) -> Timing: ...

    @property
    def drafts(self) -> bool: ...

    async def draft(
        self, context: Context, plan: DraftPlan, state: AcceptanceState, round_number: int, course: Course | None = None
    ) -> Sequence[Judged]:
        """A block of the drafter beside, without its rows, and what stands of it; with a course further ones, if need
        be fewer than it says.

        Raises InvalidDraft if it gives none, and what `verify` raises.
        """
        ...

    async def verify(
        self, context: Context, draft: Draft, state: AcceptanceState, round_number: int, rounds: int = 1
    ) -> Verdict:
        """Judge one block, or without candidates take so many rounds at once, at most.

        Raises InvalidDraft (the drafter's fault), ServiceUnavailable, DeadlineExceeded, ...
        """
        ...

    async def close(self) -> None:
        """End the stream; the verifier forgets the session."""
        ...
