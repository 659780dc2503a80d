"""What every runtime refuses before any work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from adasd.core.errors import ContextLengthExceeded, InvalidRequest, SessionNotFound
from adasd.core.messages import ModelInfo
from adasd.runtime.base import Segment


def check_batch(batch: Sequence[Segment], held: Mapping[bytes, int], info: ModelInfo) -> None:
    """Refuse a batch with a session twice, or any segment that cannot be read as it is.

    held: KV length by session. Raises SessionNotFound, ContextLengthExceeded, InvalidRequest.
    """
    if len({segment.session for segment in batch}) < len(batch):
        raise InvalidRequest("a session may be in a batch once", "session")
    for segment in batch:
        _check(segment, held.get(segment.session, 0), info)


def _check(segment: Segment, held: int, info: ModelInfo) -> None:
    if segment.base < 0 or not 0 <= segment.rows <= len(segment.ids):
        raise InvalidRequest(f"logits of {segment.rows} of {len(segment.ids)} positions after {segment.base}", "rows")
    if segment.base > held:
        raise SessionNotFound(f"the KV holds {held} positions of this session, not {segment.base}")
    end = segment.base + len(segment.ids)
    if end > info.context_length:
        raise ContextLengthExceeded(f"{end} positions, the model attends to {info.context_length}")
    if segment.ids and not (min(segment.ids) >= 0 and max(segment.ids) < info.vocabulary):
        raise InvalidRequest(f"token ids must be within [0, {info.vocabulary})", "ids")
