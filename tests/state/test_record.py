"""What one write sends, and what is refused before it is sent."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from adasd.core.adaptive import AcceptanceState, patches
from adasd.core.progress import GenerationState
from adasd.state.record import MAX_STATE_BYTES, Lives, SessionKeys, commit_arguments, creation_arguments
from tests.state.sessions import a_round, new_record, random_verdict

LIVES = Lives(3600, 10.0)


def payload(state: GenerationState, round_number: int) -> tuple[GenerationState, int]:
    """One round with the same verdict each time: the state after it, and the bytes its commit sends."""
    record = new_record()
    draft, verdict = random_verdict(Random(3))
    new = state.after(draft, verdict, "exact", None)
    pieces = tuple(patches(state.acceptance.pack(), new.acceptance.pack()))
    commit = a_round(record, round_number, tokens=verdict.tokens, patches=pieces, counters=new.counters.as_dict())
    return new, sum(map(len, commit_arguments(commit, SessionKeys.of(record.session).channel, LIVES)))


def test_a_commit_is_as_long_as_its_round_however_long_the_session() -> None:
    state, sizes = GenerationState(), []
    for round_number in range(2001):
        state, size = payload(state, round_number)
        sizes.append(size)
    assert abs(sizes[2000] - sizes[10]) < 64
    assert max(sizes) < 1024


def test_a_digest_tells_commits_apart_and_creations_always() -> None:
    record = new_record()
    channel = SessionKeys.of(record.session).channel

    def digest(**changes: Any) -> bytes:
        return commit_arguments(a_round(record, 0, **changes), channel, LIVES)[3]

    assert digest() == digest()
    others = [
        {"tokens": (1,)},
        {"patches": ()},
        {"counters": {}},
        {"finish_reason": "stop"},
        {"owner": "b"},
        {"epoch": 2},
        {"round_number": 1},
    ]
    assert len({digest(), *(digest(**other) for other in others)}) == 1 + len(others)
    assert creation_arguments(record, b"", LIVES)[0] != creation_arguments(record, b"", LIVES)[0]


@pytest.mark.parametrize("session", [b"", b"short", bytes(17)])
def test_session_ids_of_another_size_are_refused(session: bytes) -> None:
    with pytest.raises(ValueError, match="session must have 16 bytes"):
        SessionKeys.of(session)


def test_a_state_that_is_too_large_is_refused() -> None:
    assert len(AcceptanceState().pack()) <= MAX_STATE_BYTES
    with pytest.raises(ValueError, match="state must have at most 3072 bytes, got 3073"):
        creation_arguments(new_record(), bytes(3073), LIVES)


@pytest.mark.parametrize("patch", [(-1, b"abcd"), (MAX_STATE_BYTES - 3, b"abcd")], ids=str)
def test_patches_outside_a_state_are_refused(patch: tuple[int, bytes]) -> None:
    with pytest.raises(ValueError, match="patch of 4 bytes"):
        commit_arguments(a_round(new_record(), 0, patches=(patch,)), "channel", LIVES)


def test_negative_rounds_and_ids_are_refused() -> None:
    with pytest.raises(ValueError, match="round_number"):
        commit_arguments(a_round(new_record(), -1), "channel", LIVES)
    with pytest.raises(OverflowError):
        commit_arguments(a_round(new_record(), 0, tokens=(-1,)), "channel", LIVES)
