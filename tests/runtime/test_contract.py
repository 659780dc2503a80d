"""What every runtime promises, held against one pass without a cache."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM

from adasd.core.errors import ContextLengthExceeded, InvalidRequest, SessionNotFound
from adasd.runtime.base import Segment
from adasd.runtime.loading import RuntimeOptions, load_model
from adasd.runtime.pair import ensure_demo_pair
from adasd.runtime.student import load_student
from tests.runtime.models import CONTEXT, SUBJECTS, VOCABULARY, Subject, subject, torch_subject

TOLERANCE = 1e-4
OF_THE_LARGEST = 5e-5
"""A logit's sum has terms as large as the largest one's, and their rounding, in whatever order a processor adds."""

Step = tuple[int, list[int], int]
"""Positions to roll back, ids to read, trailing rows wanted; both numbers are cut to what there is."""

tokens = st.lists(st.integers(1, VOCABULARY - 1), min_size=1, max_size=16)
steps = st.lists(st.tuples(st.integers(0, 24), tokens, st.integers(0, 16)), min_size=1, max_size=10)


def walk(subject: Subject, wanted: Sequence[Step], limit: int) -> None:
    """Play forwards and rollbacks on a fresh session; every row equals that of one pass over the whole text."""
    session, text = os.urandom(16), []
    for undone, ids, rows in wanted:
        text = text[: max(0, len(text) - undone)]
        ids = ids[: limit - len(text)]
        rows = min(rows, len(ids))
        (logits,) = subject.runtime.forward([Segment(session, len(text), ids, rows)])
        text = [*text, *ids]
        assert logits.shape[0] == rows
        if rows:
            expected = subject.full(text)[-rows:]
            within = max(TOLERANCE, OF_THE_LARGEST * float(np.abs(expected[np.isfinite(expected)]).max()))
            np.testing.assert_allclose(np.asarray(logits), expected, atol=within, rtol=TOLERANCE)
    subject.runtime.release(session)


@pytest.fixture(params=SUBJECTS)
def each(request: pytest.FixtureRequest) -> Subject:
    return subject(request.param)


@pytest.fixture
def session() -> bytes:
    return os.urandom(16)


@pytest.mark.parametrize("name", SUBJECTS)
@settings(max_examples=25, deadline=None, derandomize=True)
@given(wanted=steps)
def test_any_split_into_forwards_and_rollbacks_gives_the_logits_of_one_pass(name: str, wanted: list[Step]) -> None:
    walk(subject(name), wanted, CONTEXT)


def test_rows_none(each: Subject, session: bytes) -> None:
    (logits,) = each.runtime.forward([Segment(session, 0, [1, 2, 3], 0)])
    assert tuple(logits.shape) == (0, each.width)


def test_a_segment_without_ids_only_rolls_back(each: Subject, session: bytes) -> None:
    each.runtime.forward([Segment(session, 0, [1, 2, 3], 0)])
    (logits,) = each.runtime.forward([Segment(session, 1, [], 0)])
    assert tuple(logits.shape) == (0, each.width)
    with pytest.raises(SessionNotFound):
        each.runtime.forward([Segment(session, 2, [4], 1)])


def test_sessions_of_one_batch_do_not_meet(each: Subject, session: bytes) -> None:
    other = os.urandom(16)
    each.runtime.forward([Segment(session, 0, [5, 6], 0), Segment(other, 0, [7], 0)])
    first, second = each.runtime.forward([Segment(session, 2, [8], 1), Segment(other, 1, [8, 9], 2)])
    np.testing.assert_allclose(np.asarray(first), each.full([5, 6, 8])[-1:], atol=TOLERANCE, rtol=TOLERANCE)
    np.testing.assert_allclose(np.asarray(second), each.full([7, 8, 9])[-2:], atol=TOLERANCE, rtol=TOLERANCE)


def test_a_base_beyond_the_kv_is_refused(each: Subject, session: bytes) -> None:
    with pytest.raises(SessionNotFound):
        each.runtime.forward([Segment(session, 1, [4], 1)])
    each.runtime.forward([Segment(session, 0, [1, 2, 3], 0)])
    with pytest.raises(SessionNotFound, match="3 positions"):
        each.runtime.forward([Segment(session, 4, [4], 1)])


def test_release_forgets(each: Subject, session: bytes) -> None:
    each.runtime.forward([Segment(session, 0, [1, 2, 3], 0)])
    each.runtime.release(session)
    each.runtime.release(session)
    with pytest.raises(SessionNotFound):
        each.runtime.forward([Segment(session, 3, [4], 1)])


def test_the_last_position_is_usable_and_the_next_is_refused(each: Subject, session: bytes) -> None:
    text = [1 + i % 90 for i in range(CONTEXT)]
    each.runtime.forward([Segment(session, 0, text[:-1], 0)])
    with pytest.raises(ContextLengthExceeded, match=f"{CONTEXT + 1} positions.*{CONTEXT}"):
        each.runtime.forward([Segment(session, CONTEXT - 1, [1, 2], 1)])
    (logits,) = each.runtime.forward([Segment(session, CONTEXT - 1, text[-1:], 1)])
    np.testing.assert_allclose(np.asarray(logits), each.full(text)[-1:], atol=TOLERANCE, rtol=TOLERANCE)


@pytest.mark.parametrize(
    ("segment", "param"),
    [
        (Segment(b"s", 0, [1, VOCABULARY], 1), "ids"),
        (Segment(b"s", 0, [-1], 1), "ids"),
        (Segment(b"s", 0, [1], 2), "rows"),
        (Segment(b"s", 0, [1], -1), "rows"),
        (Segment(b"s", -1, [1], 1), "rows"),
    ],
)
def test_bad_segments_are_refused_before_any_work(each: Subject, segment: Segment, param: str) -> None:
    good = os.urandom(16)
    with pytest.raises(InvalidRequest) as refusal:
        each.runtime.forward([Segment(good, 0, [1, 2], 0), segment])
    assert refusal.value.param == param
    with pytest.raises(SessionNotFound):
        each.runtime.forward([Segment(good, 2, [3], 1)])


def test_a_session_may_be_in_a_batch_once(each: Subject, session: bytes) -> None:
    with pytest.raises(InvalidRequest, match="once"):
        each.runtime.forward([Segment(session, 0, [1], 0), Segment(session, 1, [2], 0)])


@pytest.fixture(scope="module")
def pair() -> dict[str, Subject]:
    folders = ensure_demo_pair()
    options = RuntimeOptions(threads=2, target=folders.target, dtype="float32")
    target = AutoModelForCausalLM.from_pretrained(folders.target, dtype=torch.float32)
    draft = load_student(folders.draft, target)
    runtimes: list[Any] = [
        load_model(str(folders.target), "target", options)[0],
        load_model(str(folders.draft), "draft", options)[0],
    ]
    return {"target": torch_subject(target, runtimes[0]), "draft": torch_subject(draft, runtimes[1])}


@pytest.mark.pair
@pytest.mark.slow
@pytest.mark.parametrize("role", ["target", "draft"])
@pytest.mark.parametrize("seed", range(2))
def test_the_demo_pair_keeps_the_promise(pair: dict[str, Subject], role: str, seed: int) -> None:
    random = np.random.default_rng(seed)
    prompt = random.integers(0, 49152, 70).tolist()
    wanted: list[Step] = [(0, prompt, 8)]
    wanted += [(int(random.integers(0, 12)), random.integers(0, 49152, 9).tolist(), 9) for _ in range(4)]
    walk(pair[role], wanted, 8192)
