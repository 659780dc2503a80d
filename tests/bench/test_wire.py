"""The figures of the wire: what a candidate may take, and that the gateway passes a block on as it came."""

from __future__ import annotations

import pytest

from adasd.bench.wire import CANDIDATES, block, relay
from adasd.core.messages import DraftReply
from adasd.rpc.codec import encode_draft_reply


@pytest.mark.parametrize(("support", "bytes_at_most"), [(128, 800), (512, 3200), (None, 3 * 5000 + 100)])
def test_a_candidate_takes_no_more_than_is_said(support: int | None, bytes_at_most: int) -> None:
    draft = block(5000, support)
    message = encode_draft_reply(DraftReply(7, 1000, draft))
    drafted = message.SerializeToString()
    assert len(drafted) / CANDIDATES <= bytes_at_most
    asked = relay(drafted, type(message).FromString)
    assert all(row in asked for row in message.draft.rows)
