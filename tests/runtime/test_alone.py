"""Blocks that go on by themselves are those that are drafted step by step, to the last bit."""

from __future__ import annotations

import time
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import PreTrainedModel

from adasd.core.adaptive import AcceptanceState
from adasd.core.context import context_hash
from adasd.core.costs import NOMINAL
from adasd.core.drafting import Block
from adasd.core.draws import CounterDraws
from adasd.core.errors import NumericalFault
from adasd.core.messages import ContextDelta, DraftRequest, Timing, VerifyRequest
from adasd.core.rows import copied_block
from adasd.core.types import Draft, DraftPlan, Processing, SamplingParams
from adasd.core.verdicts import Verdict
from adasd.core.worth import ENTROPY_NODES, Worth
from adasd.kernels.device import DeviceKernels
from adasd.kernels.positions import Columns
from adasd.kernels.tiles import STEP
from adasd.runtime.decoder import Decoder
from adasd.runtime.passes import Job, Pass, Run
from adasd.runtime.ragged import RaggedRuntime
from adasd.runtime.replica import Replica
from tests.runtime.models import CONTEXT, VOCABULARY, info, model
from tests.threads import threads_of_torch

SUPPORT = 8
SESSION = b"s" * 16
PLAIN = SamplingParams(seed=4, temperature=0.9)


def replica(
    alone: bool, support: int | None = SUPPORT, network: PreTrainedModel | None = None, context: int = CONTEXT
) -> Replica[Any]:
    """alone: equipped to go on by itself."""
    body = Decoder(network or model("student", head_dim=STEP), context, "int8")
    assert body.columns is not None
    runtime = RaggedRuntime(body, info(context_length=context))
    kernels = DeviceKernels(support, Columns(body.columns.numpy(), VOCABULARY))
    if alone:
        runtime.equip("draft", kernels)
    return Replica(runtime, kernels)


@pytest.fixture(scope="module", params=[1, 2], ids=["one-thread", "two-threads"])
def pair(request: pytest.FixtureRequest) -> Iterator[tuple[Replica[Any], Replica[Any]]]:
    """One that goes on by itself, and one that takes steps."""
    with threads_of_torch(request.param):
        yield replica(alone=True), replica(alone=False)


def wide(context: int, name: str = "student") -> PreTrainedModel:
    """As `model` has it, but with a longer context."""
    network = deepcopy(model(name, head_dim=STEP))
    network.config.max_position_embeddings = context
    return network


def asked(plan: DraftPlan, sampling: SamplingParams = PLAIN, length: int = 9, session: bytes = SESSION) -> DraftRequest:
    ids = [(7 * i + length) % 60 for i in range(length)]
    return DraftRequest(ContextDelta(session, length, 5, 0, ids, context_hash(ids)), sampling, plan, 0)


def told(held: Replica[Any], request: DraftRequest) -> tuple[Draft, Timing]:
    """The block, and the account of its time."""
    answers: list[Any] = []
    job = Job(held.draft_steps(request), lambda result, timing: answers.append((result, timing)))
    held.batcher.add(job)
    while held.batcher.jobs:
        held.batcher.step()
    ((draft, timing),) = answers
    if isinstance(draft, BaseException):
        raise draft
    return draft, timing


def same(left: Draft, right: Draft) -> bool:
    rows = zip(left.rows, right.rows, strict=True)
    alike = all(
        type(a) is type(b) and np.array_equal(a.ids, b.ids) and np.array_equal(a.weights, b.weights) for a, b in rows
    )
    return (left.ids, left.entropies) == (right.ids, right.entropies) and alike


probabilities = st.floats(0.0, 1.0)
worths = st.builds(
    Worth,
    acceptance=st.lists(probabilities, min_size=ENTROPY_NODES, max_size=ENTROPY_NODES).map(tuple),
    mean=probabilities,
    rate=st.floats(0.0, 40.0),
    costs=st.builds(
        lambda fixed, draft, verify: replace(NOMINAL, fixed=fixed, draft=draft, verify=tuple(sorted(verify))),
        st.floats(0.0, 0.02),
        st.floats(0.0, 0.02),
        st.lists(st.floats(0.01, 0.2), min_size=1, max_size=30),
    ),
)
plans = st.builds(DraftPlan, st.integers(1, 20), st.just(float("inf")) | st.floats(0.0, 4.0), worth=st.none() | worths)
samplings = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.05, 0.7, 1.0, 3.0]),
    seed=st.integers(0, 2**64 - 1),
    choice=st.integers(0, 3),
    ignore_eos=st.booleans(),
)


@given(plan=plans, sampling=samplings, length=st.integers(1, CONTEXT))
def test_a_block_does_not_depend_on_who_takes_its_steps(
    pair: tuple[Replica[Any], Replica[Any]], plan: DraftPlan, sampling: SamplingParams, length: int
) -> None:
    """Nor do the passes it takes, and those of the next block, which begins where the KV of this one ends."""
    for request in (asked(plan, sampling, length), asked(plan, sampling, max(1, length - 1))):
        (left, by_itself), (right, by_steps) = (told(held, request) for held in pair)
        assert same(left, right)
        assert by_itself.forwards == by_steps.forwards
        assert by_itself.tokens == by_steps.tokens


@pytest.mark.parametrize(
    "sampling",
    [
        replace(PLAIN, temperature=0.0),
        replace(PLAIN, top_k=5),
        replace(PLAIN, top_p=0.9),
        replace(PLAIN, min_p=0.1),
        replace(PLAIN, processing=Processing(frequency_penalty=1.0)),
    ],
    ids=["greedy", "top_k", "top_p", "min_p", "processed"],
)
def test_what_sampling_cuts_or_changes_is_left_to_the_steps(
    pair: tuple[Replica[Any], Replica[Any]], sampling: SamplingParams
) -> None:
    """Of the prompt's first candidate a penalty changes nothing yet."""
    for length in (5, 9):
        drafts = [held.propose(asked(DraftPlan(7), sampling, length)) for held in pair]
        assert same(*drafts)
    assert same(*(held.propose(asked(DraftPlan(7, coupled=True))) for held in pair))


def passes_by_itself(held: Replica[Any], monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Of every time it goes on, from now."""
    runtime, counts = held._runtime, []
    follow = runtime.follow

    def counted(*arguments: Any) -> Any:
        found = follow(*arguments)
        counts.append(0 if found is None else len(found.read))
        return found

    monkeypatch.setattr(runtime, "follow", counted)
    return counts


def test_it_goes_on_to_the_end_of_the_block(monkeypatch: pytest.MonkeyPatch) -> None:
    held = replica(alone=True)
    counts = passes_by_itself(held, monkeypatch)
    plan = DraftPlan(12)
    assert len(held.propose(asked(plan, replace(PLAIN, ignore_eos=True)))) == 12
    assert counts == [11]


def test_where_the_kv_is_full_it_stops_and_goes_on_once_there_is_more(monkeypatch: pytest.MonkeyPatch) -> None:
    longer = {"network": wide(256), "context": 256}
    held, other = replica(alone=True, **longer), replica(alone=False, **longer)
    counts = passes_by_itself(held, monkeypatch)
    request = asked(DraftPlan(12), replace(PLAIN, ignore_eos=True), length=60)
    assert same(held.propose(request), other.propose(request))
    assert counts == [4, 6]  # up to position 64, one by a step, the rest


def test_what_was_read_on_the_way_is_not_read_again() -> None:
    """By the next block, of which all but the last candidate stand."""
    request = asked(DraftPlan(6), replace(PLAIN, ignore_eos=True))
    tokens = []
    for held in (replica(alone=True), replica(alone=False)):
        ids = [*request.context.ids, *held.propose(request).ids[:5]]
        grown = replace(request, context=replace(request.context, base=len(ids), ids=ids, hash=context_hash(ids)))
        tokens.append(told(held, replace(grown, plan=DraftPlan(1)))[1].tokens)
    assert tokens == [1, 1]


def test_somebody_who_waits_is_not_kept_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    held, other = replica(alone=True), replica(alone=False)
    counts, request = passes_by_itself(held, monkeypatch), asked(DraftPlan(6), replace(PLAIN, ignore_eos=True))
    held.batcher.disturb(True)
    assert same(held.propose(request), other.propose(request))
    assert counts == [0] * 6
    held.batcher.disturb(False)
    held.propose(request)
    assert counts[6:] == [5]


def test_two_in_hand_take_steps_together(monkeypatch: pytest.MonkeyPatch) -> None:
    held, other = replica(alone=True), replica(alone=False)
    counts, answers = passes_by_itself(held, monkeypatch), {}
    requests = [asked(DraftPlan(5), replace(PLAIN, ignore_eos=True), 9, bytes([n]) * 16) for n in range(2)]
    for number, request in enumerate(requests):
        job = Job(held.draft_steps(request), lambda draft, _, number=number: answers.update({number: draft}))
        held.batcher.add(job)
    while held.batcher.jobs:
        held.batcher.step()
    assert not counts
    assert all(same(answers[number], other.propose(request)) for number, request in enumerate(requests))


def test_the_account_tells_passes_from_rules() -> None:
    held, began = replica(alone=True), time.perf_counter()
    _, timing = told(held, asked(DraftPlan(10), replace(PLAIN, ignore_eos=True)))
    assert (timing.forwards, timing.sessions) == (10, 10)
    assert min(timing.forward, timing.rules) > 0.0
    assert timing.whole <= time.perf_counter() - began, "no time is told twice"


@pytest.mark.parametrize("alone", [True, False])
def test_logits_that_are_no_numbers_are_told_as_ever(alone: bool) -> None:
    """Those behind the third candidate, whose embedding is none; the next block does not see them."""
    request = asked(DraftPlan(6), replace(PLAIN, ignore_eos=True))
    whole = replica(alone=False).propose(request)
    poisoned = deepcopy(model("student", head_dim=STEP))
    with torch.no_grad():
        poisoned.get_input_embeddings().weight[whole.ids[2]] = torch.nan
    held = replica(alone, network=poisoned)
    with pytest.raises(NumericalFault, match="NaN"):
        held.propose(request)
    assert same(held.propose(replace(request, plan=DraftPlan(3))), whole.cut(3))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_first_row_that_is_not_finite_is_left_to_the_steps(bad: float) -> None:
    held = replica(alone=True)
    held.propose(asked(DraftPlan(1)))
    ids = [1, 2, 3]
    block = Block(DraftPlan(5), len(ids), CounterDraws(0), ())
    logits = torch.full((1, 20), -torch.inf if bad < 0 else 0.0)
    logits[0, 4] = bad
    assert held._runtime.follow(Pass(SESSION, ids, 1, PLAIN, "draft", None, block), logits) is None


def test_rows_of_the_whole_vocabulary_are_left_to_the_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    held = replica(alone=True, support=None)
    counts = passes_by_itself(held, monkeypatch)
    assert same(held.propose(asked(DraftPlan(5))), replica(alone=False, support=None).propose(asked(DraftPlan(5))))
    assert set(counts) <= {0}


def target(alone: bool, context: int = CONTEXT, network: PreTrainedModel | None = None, **facts: Any) -> Replica[Any]:
    body = Decoder(network or model("llama", head_dim=STEP), context, "int8")
    runtime = RaggedRuntime(body, replace(info(), **{"context_length": context, **facts}))
    kernels = DeviceKernels()
    if alone:
        runtime.equip("target", kernels)
    return Replica(runtime, kernels)


@pytest.fixture(scope="module", params=[1, 2], ids=["one-thread", "two-threads"])
def targets(request: pytest.FixtureRequest) -> Iterator[tuple[Replica[Any], Replica[Any]]]:
    """One that goes on by itself, and one that takes steps."""
    with threads_of_torch(request.param):
        yield target(alone=True), target(alone=False)


def question(
    rounds: int, sampling: SamplingParams = PLAIN, length: int = 9, draft: Draft | None = None, **other: Any
) -> VerifyRequest:
    ids = [(7 * i + length) % 60 for i in range(length)]
    context = ContextDelta(SESSION, length, 5, 0, ids, context_hash(ids))
    state = AcceptanceState().pack()
    return VerifyRequest(context, sampling, draft or Draft(), "exact", state, 0, rounds=rounds, **other)


def answered(held: Replica[Any], request: VerifyRequest) -> tuple[Verdict, Timing, bytes]:
    """The verdict, the account of its time, and what the session is known to be then."""
    answers: list[Any] = []
    held.batcher.add(Job(held.verify_steps(request), lambda result, timing: answers.append((result, timing))))
    while held.batcher.jobs:
        held.batcher.step()
    ((verdict, timing),) = answers
    if isinstance(verdict, BaseException):
        raise verdict
    return verdict, timing, held.context_hash(SESSION).digest


@given(
    sampling=samplings | samplings.map(lambda one: replace(one, temperature=0.0)),
    rounds=st.sampled_from([1, 2, 4, 8]),
    length=st.integers(1, CONTEXT),
    copied=st.lists(st.integers(0, VOCABULARY - 1), max_size=3),
)
def test_a_run_does_not_depend_on_who_takes_its_rounds(
    targets: tuple[Replica[Any], Replica[Any]], sampling: SamplingParams, rounds: int, length: int, copied: list[int]
) -> None:
    """Nor do the passes it takes, when it ends, what is known of the session, and the run after it."""
    block = copied_block(copied[: CONTEXT - length])
    for request in (question(rounds, sampling, length, block), question(rounds, sampling, max(1, length - 1))):
        (left, by_itself, known), (right, by_steps, known_too) = (answered(held, request) for held in targets)
        assert (left, known) == (right, known_too)
        assert (by_itself.forwards, by_itself.tokens) == (by_steps.forwards, by_steps.tokens)
    assert targets[0].batcher.passes == targets[1].batcher.passes


@pytest.mark.parametrize(
    "other",
    [
        {"sampling": replace(PLAIN, top_k=5)},
        {"sampling": replace(PLAIN, processing=Processing(presence_penalty=1.0)), "length": 5},
        {"top_logprobs": 2},
    ],
    ids=["top_k", "processed", "logprobs"],
)
def test_what_needs_more_than_tokens_is_left_to_the_steps(
    targets: tuple[Replica[Any], Replica[Any]], other: dict[str, Any]
) -> None:
    left, right = (answered(held, question(8, **other)) for held in targets)
    assert left[0] == right[0]
    coupled = replace(question(8), acceptance="coupled")
    assert answered(targets[0], coupled)[0] == answered(targets[1], coupled)[0]


def test_a_run_goes_on_by_itself_until_somebody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    held, other = target(alone=True), target(alone=False)
    counts, request = passes_by_itself(held, monkeypatch), question(8, replace(PLAIN, ignore_eos=True))
    assert answered(held, request)[0] == answered(other, request)[0]
    assert counts == [7]
    held.batcher.disturb(True)
    assert answered(held, request)[0] == answered(other, request)[0]
    assert counts[1:] == [0] * 7  # of the last round nobody asks


@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.parametrize("greedy", [True, False])
def test_a_round_whose_logits_are_no_numbers_ends_the_run(alone: bool, greedy: bool) -> None:
    """What came before it is told; whoever asks again hears why."""
    sampling = replace(PLAIN, ignore_eos=True, temperature=0.0 if greedy else 0.9)
    whole = answered(target(alone=False), question(8, sampling))[0]
    poisoned = deepcopy(model("llama", head_dim=STEP))
    with torch.no_grad():
        poisoned.get_input_embeddings().weight[whole.tokens[2]] = torch.nan
    held = target(alone, network=poisoned)
    first = whole.tokens.index(whole.tokens[2])
    verdict = answered(held, question(8, sampling))[0]
    assert verdict.tokens == whole.tokens[: first + 1]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_a_first_row_of_a_run_that_is_not_finite_is_left_to_the_rules(bad: float, temperature: float) -> None:
    held = target(alone=True)
    answered(held, question(1))
    ids = [1, 2, 3]
    logits = torch.full((1, VOCABULARY), -torch.inf if bad < 0 else 0.0)
    logits[0, 4] = bad
    wanted = Pass(SESSION, ids, 1, replace(PLAIN, temperature=temperature), "target")
    run = Run(4, len(ids), CounterDraws(0), ())
    assert held._runtime.follow(replace(wanted, run=run), logits) is None


def test_a_run_ends_with_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = answered(target(alone=False), question(8, replace(PLAIN, ignore_eos=True)))[0]
    end = max(whole.tokens.index(token) for token in whole.tokens)
    held = target(alone=True, eos_ids=frozenset({whole.tokens[end]}))
    counts = passes_by_itself(held, monkeypatch)
    assert answered(held, question(8))[0].tokens == whole.tokens[: end + 1]
    assert 1 < end < 8
    assert counts == [end]


def test_a_run_stops_where_the_kv_is_full_and_goes_on_once_there_is_more(monkeypatch: pytest.MonkeyPatch) -> None:
    longer = {"network": wide(256, "llama"), "context": 256}
    held, other = target(alone=True, **longer), target(alone=False, **longer)
    counts, request = passes_by_itself(held, monkeypatch), question(8, replace(PLAIN, ignore_eos=True), length=60)
    assert answered(held, request)[0] == answered(other, request)[0]
    assert counts == [4, 2]  # up to position 64, one by a step, the rest


def test_a_run_does_not_go_beyond_the_context(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though there is KV for more."""
    replicas = target(alone=True, context_length=12), target(alone=False, context_length=12)
    left, right = (answered(held, question(8, replace(PLAIN, ignore_eos=True)))[0] for held in replicas)
    assert left == right
    assert len(left.tokens) == 4
