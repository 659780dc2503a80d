"""The reducer, the packed state, and what a round changes of it."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adasd.core.adaptive import NEAR_WORDS, PACKED_BYTES, AcceptanceState, patches
from adasd.core.costs import NOMINAL
from adasd.core.density import NODES
from adasd.core.progress import Counters, GenerationState
from adasd.core.prospects import FORMER_BYTES, PROSPECT_BYTES
from adasd.core.types import Draft, DraftPlan, Foreseen
from adasd.core.verdicts import Judgement, Verdict
from adasd.core.worth import ENTROPY_NODES, Worth

BLOCK = Draft((4, 5, 6), (0.5, 1.5, 2.5), ())
ACCEPTED = Judgement(0.2, exact=True, accepted=True)
RELAXED = Judgement(0.3, exact=False, accepted=True, loss=0.7)
REJECTED = Judgement(0.8, exact=False, accepted=False, floored=True)


def after(*judgements: Judgement, labels: str = "exact") -> AcceptanceState:
    accepted = sum(j.accepted for j in judgements)
    verdict = Verdict((*BLOCK.ids[:accepted], 9), accepted, "recovered", judgements)
    return AcceptanceState().after(BLOCK, verdict, labels)  # type: ignore[arg-type]


def test_only_the_rejection_that_ended_the_round_enters_the_threshold() -> None:
    state = after(ACCEPTED, RELAXED, REJECTED)
    assert state.rejected_entropy.mean == 2.5
    assert after(ACCEPTED, RELAXED, ACCEPTED).rejected_entropy.mean is None


def test_labels_decide_where_a_distance_is_filed() -> None:
    by_exact, by_own = after(RELAXED), after(RELAXED, labels="own")
    assert (by_exact.posterior.accepted_samples.n, by_exact.posterior.rejected_samples.n) == (0, 1)
    assert (by_own.posterior.accepted_samples.n, by_own.posterior.rejected_samples.n) == (1, 0)


@pytest.mark.parametrize("distance", [0.0, 5e-4, 1.0])
def test_certain_cases_are_not_filed(distance: float) -> None:
    state = after(Judgement(distance, exact=False, accepted=False))
    assert state.posterior.accepted_samples.n == state.posterior.rejected_samples.n == 0
    assert state.rejected_entropy.count == 1


@settings(deadline=None, max_examples=40)
@given(st.lists(st.tuples(st.floats(0, 1), st.booleans()), max_size=40))
def test_pack_round_trip_and_patches(samples: list[tuple[float, bool]]) -> None:
    state = AcceptanceState()
    stored = bytearray(state.pack())
    for distance, exact in samples:
        new = state.after(BLOCK, Verdict((9,), 0, "recovered", (Judgement(distance, exact, exact),)), "exact")
        for offset, piece in patches(state.pack(), new.pack()):
            stored[offset : offset + len(piece)] = piece
        state = new
    assert bytes(stored) == state.pack()
    again = AcceptanceState.unpack(bytes(stored))
    assert again.rejected_entropy == state.rejected_entropy
    np.testing.assert_array_equal(
        again.posterior.accepted_samples.counts, state.posterior.accepted_samples.counts, strict=True
    )
    assert again.pack() == state.pack()


def test_packed_state_stays_within_three_kilobytes_and_a_round_changes_little_of_it() -> None:
    assert PACKED_BYTES <= 3072
    state, judgements = after(ACCEPTED), (ACCEPTED,) * 20
    for _ in range(2000):
        new = state.after(Draft(), Verdict((), 0, "none", judgements), "exact")
        changed = sum(len(piece) for _, piece in patches(state.pack(), new.pack()))
        state = new
    assert len(state.pack()) == PACKED_BYTES
    assert changed < 100


def former(packed: bytes, version: int, prospects: int) -> bytes:
    """A state as earlier releases packed it: counts in eight bytes, and so much of the prospects."""
    count, total = struct.unpack_from("<Id", packed, 4)
    parts = [struct.pack("<HHQd", version, NODES, count, total)]
    for which in (0, 1):
        offset = 16 + which * (20 + 4 * NODES)
        n, first, second = struct.unpack_from("<Idd", packed, offset)
        parts += [struct.pack("<Qdd", n, first, second), packed[offset + 20 : offset + 20 + 4 * NODES]]
    start = len(packed) - PROSPECT_BYTES
    return b"".join([*parts, packed[start : start + prospects]])


def test_states_of_earlier_versions_are_read() -> None:
    """The first had no prospects yet, the second's foresaw nothing."""
    state = after(ACCEPTED, REJECTED)
    first, second = former(state.pack(), 1, 0), former(state.pack(), 2, FORMER_BYTES)
    assert (len(first), len(second)) == (2804, 3068)
    assert AcceptanceState.unpack(first).pack() == state.pack()
    assert AcceptanceState.unpack(second).pack() == state.pack()


def test_a_copy_says_nothing_of_the_draft_model() -> None:
    state = after(ACCEPTED, REJECTED)
    copy = Draft(BLOCK.ids, (0.0,) * 3, (), copied=True)
    plan = DraftPlan(3, worth=Worth((0.5,) * ENTROPY_NODES, 0.5, 1.0, NOMINAL), foreseen=Foreseen((4, 5, 6), 2))
    new = state.after(copy, Verdict((4, 9), 1, "recovered", (ACCEPTED, REJECTED)), "exact", plan)
    assert (new.posterior, new.rejected_entropy) == (state.posterior, state.rejected_entropy)
    assert new.prospects.mean == state.prospects.mean
    assert new.prospects.idle == state.prospects.idle + 1
    assert (int(new.prospects.foresight.true.sum()), int(new.prospects.foresight.false.sum())) == (1, 1)
    assert AcceptanceState.unpack(new.pack()).pack() == new.pack()


@pytest.mark.parametrize(
    "packed",
    [
        b"",
        b"\x00" * PACKED_BYTES,
        b"\x01\x00" + AcceptanceState().pack()[2:],
        b"\x02\x00" + AcceptanceState().pack()[2:],
        b"\x04\x00" + AcceptanceState().pack()[2:],
        AcceptanceState().pack() + b"\x00",
    ],
)
def test_another_version_or_size_is_refused(packed: bytes) -> None:
    with pytest.raises(ValueError, match="acceptance state"):
        AcceptanceState.unpack(packed)


def test_counters() -> None:
    verdict = Verdict((4, 5, 9), 2, "recovered", (ACCEPTED, RELAXED, REJECTED))
    state = (
        GenerationState()
        .after(BLOCK, verdict, "exact", None)
        .after(Draft(), Verdict((1,), 0, "bonus"), "exact", "stop")
    )
    assert state.finish_reason == "stop"
    assert state.counters == Counters(2, 1, 3, 2, 1, 0.7, 0.7, 1)
    assert state.counters.mean_acceptance_length == 2.0
    assert state.counters.acceptance_rate == pytest.approx(2 / 3)
    assert Counters().acceptance_rate is None


def test_patches_join_what_is_near_and_nothing_else() -> None:
    size, apart = 400, 4 * (NEAR_WORDS + 1)
    old = bytes(size)
    for changed in ([0], [4, 8, 16], [0, apart], [0, apart + 4], [size - 4], [0, size - 4], [4, 8 + apart, 12 + apart]):
        new = bytearray(size)
        for offset in changed:
            new[offset] = 1
        runs: list[list[int]] = []
        for offset in changed:
            if runs and offset - runs[-1][-1] <= apart:
                runs[-1].append(offset)
            else:
                runs.append([offset])
        expected = [(run[0], bytes(new[run[0] : run[-1] + 4])) for run in runs]
        assert list(patches(old, bytes(new))) == expected
    assert list(patches(old, old)) == []
