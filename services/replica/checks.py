"""What a message must satisfy before any work is done for it: bounds that only the loaded model knows."""

from __future__ import annotations

from adasd.core.adaptive import require_packed
from adasd.core.errors import InvalidDraft, InvalidRequest
from adasd.core.messages import ContextDelta
from adasd.core.rows import check_block
from adasd.core.types import Draft


def check_context(context: ContextDelta, vocabulary: int) -> None:
    """Refuse an empty context, a prompt longer than it, and ids the model does not know."""
    if context.base < 1:
        raise InvalidRequest("context.base must be at least 1", "context.base")
    if context.prompt_length > context.base:
        raise InvalidRequest("context.prompt_length exceeds context.base", "context.prompt_length")
    if context.ids and not 0 <= min(context.ids) <= max(context.ids) < vocabulary:
        raise InvalidRequest(f"context.ids must lie within [0, {vocabulary})", "context.ids")


def check_candidates(wanted: int, limit: int) -> None:
    """Refuse a plan for more candidates than a block may have."""
    if wanted > limit:
        raise InvalidRequest(f"at most {limit} candidates a round, got {wanted}", "plan.max_candidates")


def check_draft(draft: Draft, vocabulary: int, limit: int) -> None:
    """Refuse a block that is too long, and candidates and rows that break their contract."""
    if len(draft) > limit:
        raise InvalidDraft(f"at most {limit} candidates a round, got {len(draft)}")
    check_block(draft, vocabulary)


def check_state(packed: bytes) -> None:
    """Refuse what is no packed acceptance state."""
    try:
        require_packed(packed)
    except ValueError as error:
        raise InvalidRequest(str(error), "state") from None
