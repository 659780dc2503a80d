"""A model serving sessions: replayed, mistaken and interrupted messages."""

from __future__ import annotations

import os
from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import numpy as np
import pytest

from adasd.core.adaptive import AcceptanceState
from adasd.core.context import context_hash
from adasd.core.errors import (
    ContextLengthExceeded,
    InvalidDraft,
    InvalidRequest,
    NumericalFault,
    ServiceUnavailable,
    SessionNotFound,
)
from adasd.core.host import HostKernels
from adasd.core.messages import ContextDelta, DraftRequest, VerifyRequest
from adasd.core.rows import SparseRow
from adasd.core.types import Draft, DraftPlan, FloatArray, SamplingParams
from adasd.core.verdicts import Verdict
from adasd.kernels.device import DeviceKernels
from adasd.runtime.base import Segment
from adasd.runtime.batching import Schedule
from adasd.runtime.modules import ModuleBody
from adasd.runtime.ragged import RaggedRuntime
from adasd.runtime.replica import Replica
from adasd.runtime.toy import ToyRuntime, ToySpec
from tests.runtime.models import CHUNK, info, model, ragged

SESSION = b"s" * 16
PROMPT = [3, 1, 4, 1, 5]
SAMPLING = SamplingParams(temperature=0.9, seed=7)


def toy(spec: str = "seed=1,vocab=32,eos_bias=-inf") -> Replica[Any]:
    return Replica(ToyRuntime(ToySpec.parse(f"toy:{spec}")), HostKernels(None))


def llama() -> Replica[Any]:
    return Replica(ragged("llama"), DeviceKernels(None), Schedule(CHUNK, 2, 1))


def delta(ids: Sequence[int], start: int = 0, session: bytes = SESSION) -> ContextDelta:
    return ContextDelta(session, len(ids), len(PROMPT), start, list(ids[start:]), context_hash(ids))


def propose(replica: Replica[Any], context: ContextDelta, candidates: int = 4) -> Draft:
    return replica.propose(DraftRequest(context, SAMPLING, DraftPlan(candidates), 0))


def verify(replica: Replica[Any], context: ContextDelta, draft: Draft, acceptance: str = "exact") -> Verdict:
    return replica.verify(VerifyRequest(context, SAMPLING, draft, acceptance, AcceptanceState().pack(), 0))


def same(left: Draft, right: Draft) -> bool:
    """Equal candidates, drawn from rows that differ by rounding at most: torch rounds by the length of a pass."""
    pairs = zip(left.rows, right.rows, strict=True)
    return left.ids == right.ids and all(
        np.allclose(a.weights, b.weights, rtol=0, atol=a.total * 1e-6) for a, b in pairs
    )


@pytest.fixture(params=[toy, llama])
def replica(request: pytest.FixtureRequest) -> Replica[Any]:
    fresh: Replica[Any] = request.param()
    return fresh


def test_a_repeated_message_is_harmless(replica: Replica[Any]) -> None:
    first = propose(replica, delta(PROMPT))
    assert len(first) == 4
    assert same(first, propose(replica, delta(PROMPT)))
    assert same(first, propose(replica, delta(PROMPT, start=3)))


def test_a_repeated_verification_gives_the_same_verdict(replica: Replica[Any]) -> None:
    draft = propose(replica, delta(PROMPT))
    first = verify(replica, delta(PROMPT), draft)
    assert verify(replica, delta(PROMPT), draft) == first
    assert verify(replica, delta([*PROMPT, *first.tokens], start=len(PROMPT)), Draft()).accepted == 0
    assert verify(replica, delta(PROMPT), draft) == first, "a late repetition of an earlier round"


def test_an_own_draft_is_accepted_whole(replica: Replica[Any]) -> None:
    draft = propose(replica, delta(PROMPT))
    verdict = verify(replica, delta(PROMPT), draft)
    assert verdict.accepted == len(draft)
    assert verdict.emission == "bonus"


def test_what_was_drafted_and_not_committed_is_forgotten(replica: Replica[Any]) -> None:
    """The committed text differs from the candidates whose KV the replica still holds."""
    draft = propose(replica, delta(PROMPT))
    committed = [*PROMPT, draft.ids[0], (draft.ids[1] + 1) % 32, 9]
    continued = propose(replica, delta(committed, start=len(PROMPT)))
    replica.release(SESSION)
    assert same(continued, propose(replica, delta(committed)))


def test_a_plan_of_no_candidates_reads_the_context(replica: Replica[Any]) -> None:
    assert len(propose(replica, delta(PROMPT), candidates=0)) == 0
    assert len(propose(replica, delta(PROMPT, start=5), candidates=2)) == 2


class Recorded(ToyRuntime):
    """A toy that notes which positions it was asked to read."""

    def __init__(self, spec: ToySpec) -> None:
        super().__init__(spec)
        self.read: list[tuple[int, list[int]]] = []

    def forward(self, batch: Sequence[Segment]) -> Sequence[FloatArray]:
        self.read += [(segment.base, list(segment.ids)) for segment in batch]
        return super().forward(batch)


def test_only_what_the_kv_lacks_is_read() -> None:
    runtime = Recorded(ToySpec(seed=1, vocab=32, eos_bias=-np.inf))
    replica = Replica(runtime, HostKernels(None))
    a, b = propose(replica, delta(PROMPT), candidates=2).ids
    assert runtime.read == [(0, PROMPT), (5, [a])]
    verify(replica, delta([*PROMPT, a, b, 9], start=5), Draft())
    assert runtime.read[2:] == [(6, [b, 9])]


def test_sessions_do_not_meet(replica: Replica[Any]) -> None:
    alone = propose(replica, delta(PROMPT))
    propose(replica, delta([9, 9, 9], session=b"t" * 16))
    assert same(alone, propose(replica, delta(PROMPT, start=5)))


def test_a_message_that_starts_beyond_what_is_known_asks_for_the_context(replica: Replica[Any]) -> None:
    with pytest.raises(SessionNotFound, match="holds 0 ids"):
        propose(replica, delta(PROMPT, start=2))
    assert len(propose(replica, delta(PROMPT))) == 4


def test_a_wrong_hash_asks_for_the_context(replica: Replica[Any]) -> None:
    expected = propose(replica, delta(PROMPT))
    foreign = ContextDelta(SESSION, 6, 5, 5, [7], context_hash([*PROMPT[:-1], 6, 7]))
    with pytest.raises(SessionNotFound, match="not those the message names"):
        propose(replica, foreign)
    assert same(expected, propose(replica, delta(PROMPT)))


def test_release_forgets_and_unknown_sessions_are_fine(replica: Replica[Any]) -> None:
    propose(replica, delta(PROMPT))
    replica.release(SESSION)
    replica.release(os.urandom(16))
    with pytest.raises(SessionNotFound):
        propose(replica, delta(PROMPT, start=5))


def test_cancelling_ends_a_block_early() -> None:
    asked: list[bool] = []

    def cancelled() -> bool:
        asked.append(True)
        return len(asked) > 2

    with pytest.raises(ServiceUnavailable, match="nobody waits"):
        toy().propose(DraftRequest(delta(PROMPT), SAMPLING, DraftPlan(8), 0), cancelled)
    assert len(asked) == 3


def test_candidates_fit_into_the_context() -> None:
    replica = toy("seed=1,vocab=32,eos_bias=-inf,context=7")
    assert len(propose(replica, delta(PROMPT), candidates=8)) == 2
    assert len(propose(replica, delta([*PROMPT, 1, 2]), candidates=8)) == 0
    with pytest.raises(ContextLengthExceeded):
        verify(replica, delta(list(range(8))), Draft())


def test_an_unknown_rule_is_refused(replica: Replica[Any]) -> None:
    with pytest.raises(InvalidRequest, match="unknown acceptance rule"):
        verify(replica, delta(PROMPT), Draft(), "hopeful")


def test_nan_names_the_side_it_came_from() -> None:
    sick = toy("seed=1,vocab=32,nan_after=6")
    draft = propose(toy(), delta(PROMPT))
    with pytest.raises(NumericalFault) as fault:
        propose(sick, delta(PROMPT))
    assert fault.value.side == "draft"
    with pytest.raises(NumericalFault) as fault:
        verify(sick, delta(PROMPT), draft)
    assert fault.value.side == "target"


def test_a_forward_that_failed_leaves_no_trace() -> None:
    """The pass dies in the second layer, when the first has read already; the same message then works."""
    network = deepcopy(model("llama"))
    replica = Replica(RaggedRuntime(ModuleBody(network), info()), DeviceKernels(None))
    expected = verify(llama(), delta([*PROMPT, 8, 9]), Draft())
    verify(replica, delta(PROMPT), Draft())

    def fail(*_: object) -> None:
        raise RuntimeError("out of memory")

    hook = network.get_submodule("model.layers.1").register_forward_pre_hook(fail)
    try:
        with pytest.raises(RuntimeError, match="out of memory"):
            verify(replica, delta([*PROMPT, 8, 9], start=5), Draft())
    finally:
        hook.remove()
    assert verify(replica, delta([*PROMPT, 8, 9], start=5), Draft()) == expected


def test_kv_that_the_runtime_let_go_of_is_read_again() -> None:
    runtime = ToyRuntime(ToySpec.parse("toy:seed=1,vocab=32,eos_bias=-inf"))
    replica = Replica(runtime, HostKernels(None))
    before = propose(replica, delta(PROMPT))
    runtime.release(SESSION)
    assert same(propose(replica, delta(PROMPT, start=len(PROMPT))), before)


class PassingNaN(ToyRuntime):
    """NaN logits for one forward, and what was read then stays wrong."""

    reads: list[int]

    def forward(self, batch: Sequence[Segment]) -> Sequence[FloatArray]:
        (segment,) = batch
        self.reads.append(segment.base)
        (logits,) = super().forward(batch)
        return [np.full_like(logits, np.nan) if len(self.reads) == 2 else logits]


def test_kv_behind_nan_is_not_used_again() -> None:
    runtime = PassingNaN(ToySpec.parse("toy:seed=1,vocab=32,eos_bias=-inf"))
    runtime.reads = []
    replica = Replica(runtime, HostKernels(None))
    verify(replica, delta(PROMPT), Draft())
    longer = [*PROMPT, 9]
    with pytest.raises(NumericalFault):
        verify(replica, delta(longer), Draft())
    assert verify(replica, delta(longer), Draft()).tokens
    assert runtime.reads == [0, len(PROMPT), 0]


def test_an_unsound_block_is_refused_before_anything_is_read(replica: Replica[Any]) -> None:
    """What judges it reads at its ids."""
    row = SparseRow(np.array([0, 10_000]), np.array([2**15, 2**15]))
    with pytest.raises(InvalidDraft):
        verify(replica, delta(PROMPT), Draft((0,), (1.0,), (row,)))
    assert verify(replica, delta(PROMPT), Draft()).tokens
