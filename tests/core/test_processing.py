"""Penalties, biases and bans: what they do, for a block as for one position at a time."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adasd.core.errors import InvalidRequest
from adasd.core.processing import Processor, process
from adasd.core.types import MAX_BIASES, PLAIN, Processing, SamplingParams
from tests.core.one_at_a_time import processed

VOCABULARY = 12
INF = math.inf
ids = st.lists(st.integers(0, VOCABULARY - 1), max_size=8)
biases = st.dictionaries(st.integers(0, VOCABULARY - 1), st.floats(-100, 100), max_size=4)
processings = st.builds(
    Processing,
    logit_bias=biases.map(lambda entries: tuple(sorted(entries.items()))),
    repetition_penalty=st.sampled_from([1.0, 1.0, 0.5, 1.3]),
    frequency_penalty=st.sampled_from([0.0, 0.0, 0.4, -2.0]),
    presence_penalty=st.sampled_from([0.0, 0.0, 1.5, -0.7]),
    min_tokens=st.integers(0, 9),
    eos_ids=st.sampled_from([(), (3,), (7, 2)]),
)


@settings(deadline=None)
@given(processing=processings, prompt=ids, generated=ids, candidates=ids, seed=st.integers(0, 99), data=st.data())
def test_every_row_of_a_block_is_what_it_is_alone(
    processing: Processing, prompt: list[int], generated: list[int], candidates: list[int], seed: int, data: Any
) -> None:
    """Row i by the text and the i candidates before it; `rows` at the end of a block only as in the whole of it."""
    rows = data.draw(st.integers(1, len(candidates) + 1))
    logits = np.random.default_rng(seed).normal(0.0, 3.0, (rows, VOCABULARY))
    logits[0, :2] = INF, -INF
    edits = Processor(processing, [*prompt, *generated], len(prompt)).edits(candidates, rows)
    found = logits if edits is None else process(logits, edits)
    for i in range(rows):
        before = generated + candidates[: len(candidates) - rows + 1 + i]
        np.testing.assert_allclose(found[i], processed(logits[i], processing, prompt, before), rtol=1e-12)


def test_what_each_of_them_looks_at() -> None:
    """Prompt 1 1 2, generated 2 3 3: repetition knows both, frequency and presence the generated text only."""
    logits = np.array([[4.0, 4.0, -4.0, 4.0]])

    def found(processing: Processing) -> list[float]:
        edits = Processor(processing, [1, 1, 2, 2, 3, 3], 3).edits(())
        assert edits is not None
        row: list[float] = process(logits, edits)[0].tolist()
        return row

    assert found(Processing(repetition_penalty=2.0)) == [4.0, 2.0, -8.0, 2.0]
    assert found(Processing(frequency_penalty=1.5)) == [4.0, 4.0, -5.5, 1.0]
    assert found(Processing(presence_penalty=1.5)) == [4.0, 4.0, -5.5, 2.5]
    assert found(Processing(logit_bias=((1, -100.0), (2, 5.0)))) == [4.0, -96.0, 1.0, 4.0]
    assert found(Processing(logit_bias=((2, 8.0),), repetition_penalty=2.0)) == [4.0, 2.0, 2.0, 2.0]
    assert found(Processing(min_tokens=4, eos_ids=(0,))) == [-INF, 4.0, -4.0, 4.0]


def test_nothing_to_do_is_nothing_done() -> None:
    assert Processor(PLAIN, [1, 2, 3], 1).edits([4, 5], 3) is None
    assert Processor(Processing(min_tokens=4, eos_ids=(0,)), [1, 2, 3], 1).edits([4, 5], 1) is None
    assert Processor(Processing(frequency_penalty=1.0), [1, 2], 2).edits(()) is None


@settings(deadline=None)
@given(processing=processings, generated=ids, candidates=ids)
def test_edits_of_ids_are_those_of_the_columns_that_stand_for_them(
    processing: Processing, generated: list[int], candidates: list[int]
) -> None:
    edits = Processor(processing, generated, 0).edits(candidates, len(candidates) + 1)
    if edits is None:
        return
    known = np.array([0, 2, 3, 7, 8])
    logits = np.random.default_rng(1).normal(size=(len(candidates) + 1, VOCABULARY))
    np.testing.assert_array_equal(process(logits[:, known], edits.among(known)), process(logits, edits)[:, known])
    np.testing.assert_array_equal(process(logits[:, :5], edits), process(logits, edits)[:, :5])


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"frequency_penalty": 2.1}, "frequency_penalty"),
        ({"presence_penalty": math.nan}, "presence_penalty"),
        ({"repetition_penalty": 0.0}, "repetition_penalty"),
        ({"repetition_penalty": INF}, "repetition_penalty"),
        ({"logit_bias": ((1, 100.5),)}, "logit_bias"),
        ({"logit_bias": ((2, 0.0), (1, 0.0))}, "logit_bias"),
        ({"logit_bias": ((-1, 0.0),)}, "logit_bias"),
        ({"logit_bias": tuple((token, 0.0) for token in range(MAX_BIASES + 1))}, "logit_bias"),
        ({"min_tokens": -1}, "min_tokens"),
        ({"eos_ids": (2**32,)}, "eos_ids"),
    ],
)
def test_refused_by_name(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        Processing(**fields)
    assert refusal.value.param == param


def test_parameters_are_compared_and_hashed_by_value() -> None:
    one, other = (SamplingParams(processing=Processing(logit_bias=((1, 2.0),))) for _ in range(2))
    assert one == other
    assert hash(one) == hash(other)
    assert one != SamplingParams()
