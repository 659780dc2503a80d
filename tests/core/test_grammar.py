"""How far along its grammar a text is, and what may come next."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adasd.core.errors import GrammarFault, InvalidRequest
from adasd.core.grammar import MAX_GRAMMAR_CHARACTERS, BoolArray, Grammar, Progress
from adasd.core.processing import Processor, process
from adasd.core.types import Processing
from tests.core.listed import Listed

EOS, WIDTH = 0, 5
TEXTS = {(1, 2), (1, 3, 4), (1, 3, 4, 4), (2,)}
REGEX = Grammar("regex", "anything: the matcher is given")


def ids(mask: BoolArray) -> list[list[int]]:
    return [np.flatnonzero(row).tolist() for row in mask]


def progress() -> Progress:
    return Progress(Listed(TEXTS, WIDTH))


def test_a_mask_is_what_may_follow_and_an_eos_where_the_text_may_end() -> None:
    assert ids(progress().allowed([], 1, [EOS])) == [[1, 2]]
    assert ids(progress().allowed([1, 3, 4], 1, [EOS])) == [[EOS, 4]]
    assert ids(progress().allowed([1, 3, 4, 4], 1, [EOS, 9])) == [[EOS]]


def test_a_block_has_a_mask_for_every_position() -> None:
    assert ids(progress().allowed([1, 3, 4], 4, [EOS])) == [[1, 2], [2, 3], [4], [EOS, 4]]


@pytest.mark.parametrize("block", [[1, 4, 4], [1, EOS, 3]])
def test_past_what_cannot_stand_everything_is_allowed(block: list[int]) -> None:
    assert ids(progress().allowed(block, 4, [EOS])) == [[1, 2], [2, 3], [0, 1, 2, 3, 4], [0, 1, 2, 3, 4]]


def test_past_the_end_of_a_text_too() -> None:
    assert ids(progress().allowed([2, EOS], 2, [EOS])) == [[EOS], [0, 1, 2, 3, 4]]


@given(st.lists(st.sampled_from([(), (1,), (1, 3), (1, 3, 4), (1, 3, 4, 4), (2,), (1, 2)]), min_size=1))
def test_where_a_text_was_before_does_not_matter(visited: list[tuple[int, ...]]) -> None:
    one = progress()
    for text in visited:
        np.testing.assert_array_equal(one.allowed([*text], 1, [EOS]), progress().allowed([*text], 1, [EOS]))


def test_a_round_moves_by_its_block_only() -> None:
    matcher = Listed({(1,) * 1000}, WIDTH)
    one, text = Progress(matcher), [1] * 900
    one.allowed(text, 1, [EOS])
    before = matcher.moves
    for length in range(900, 920, 2):  # four candidates, one of them and an emitted token stand
        one.allowed([1] * (length + 4), 5, [EOS])
    assert before == 900
    assert matcher.moves - before <= 10 * 8


def test_a_text_that_does_not_follow_its_grammar_is_a_fault() -> None:
    with pytest.raises(GrammarFault, match="does not follow"):
        progress().allowed([1, 1], 1, [EOS])
    with pytest.raises(GrammarFault, match="does not follow"):
        progress().allowed([3, 1, 2], 2, [EOS])


def test_a_text_that_cannot_go_on_is_a_fault() -> None:
    with pytest.raises(GrammarFault, match="no token"):
        Progress(Listed({(1, 7)}, WIDTH)).allowed([1], 1, [EOS])


def test_masks_are_processed_with_all_the_rest() -> None:
    """Ids past the mask are banned, and so is an allowed one that a penalty would have made likely."""
    logits = np.zeros((2, WIDTH + 1))
    biased = Processing(logit_bias=((3, 5.0), (4, 9.0)), eos_ids=(EOS,), grammar=REGEX)
    for processing, three in ((biased, 5.0), (Processing(eos_ids=(EOS,), grammar=REGEX), 0.0)):
        edits = Processor(processing, [7, 7], 2, progress()).edits([1], 2)
        assert edits is not None
        inf = np.inf
        expected = [[-inf, 0.0, 0.0, -inf, -inf, -inf], [-inf, -inf, 0.0, three, -inf, -inf]]
        np.testing.assert_array_equal(process(logits, edits), expected)
        np.testing.assert_array_equal(process(logits[:, :4], edits), np.array(expected)[:, :4])
        known = np.array([0, 2, 3, 5])
        np.testing.assert_array_equal(process(logits[:, known], edits.among(known)), np.array(expected)[:, known])


def test_what_is_no_grammar_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="ebnf"):
        Grammar("ebnf", "")  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="characters"):
        Grammar("regex", "a" * (MAX_GRAMMAR_CHARACTERS + 1))
    with pytest.raises(InvalidRequest) as refusal:
        Processing(grammar=REGEX, min_tokens=1, eos_ids=(EOS,))
    assert refusal.value.param == "min_tokens"
