"""Where a text ends, at every offset of a block, and what may be shown of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.gateway.boundary import Boundary, StopFilter
from services.gateway.detokenizer import Decoder
from tests.services.gateway.tokenizers import FAMILIES

EOS = 0
TOY = FAMILIES["toy"]
DECODER = Decoder.of(TOY)


def ids(text: str) -> list[int]:
    """One token a byte."""
    tokens: list[int] = TOY.encode(text).ids
    return tokens


def boundary(*stop: str, max_tokens: int = 1000) -> Boundary:
    return Boundary({EOS}, stop, max_tokens, DECODER.start())


def blocks(tokens: Sequence[int], size: int) -> Iterator[Sequence[int]]:
    return (tokens[start : start + size] for start in range(0, len(tokens), size))


def run(edge: Boundary, parts: Iterator[Sequence[int]]) -> tuple[int, str | None, str]:
    """Tokens that stand, why the text ended, and the text shown."""
    count, text = 0, ""
    for part in parts:
        length, finish = edge.cut(part)
        pieces = edge.take_pieces()
        assert len(pieces) == length
        count, text = count + length, text + "".join(pieces)
        if finish:
            return count, finish, text
        assert length == len(part)
    return count, None, text


@pytest.mark.parametrize("offset", range(6))
def test_an_eos_ends_the_block_wherever_it_falls(offset: int) -> None:
    tokens = ids("abcdef")
    edge = boundary()
    assert edge.cut([*tokens[:offset], EOS, *tokens[offset:]]) == (offset + 1, "stop")
    assert "".join(edge.take_pieces()) == "abcdef"[:offset]


@pytest.mark.parametrize("limit", range(1, 7))
def test_max_tokens_ends_the_block_wherever_it_falls(limit: int) -> None:
    edge = boundary(max_tokens=limit)
    assert edge.cut(ids("abcdefgh")) == (limit, "length")
    assert "".join(edge.take_pieces()) == "abcdefgh"[:limit]


@pytest.mark.parametrize("size", range(1, 9))
@pytest.mark.parametrize("at", range(6))
def test_a_stop_string_ends_the_block_wherever_it_falls(size: int, at: int) -> None:
    text = "abcdef"[:at] + "STOP" + "ghi"
    assert run(boundary("STOP"), blocks(ids(text), size)) == (at + 4, "stop", "abcdef"[:at])


def test_the_earliest_boundary_wins() -> None:
    assert boundary("cd", max_tokens=3).cut(ids("abcd")) == (3, "length")
    assert boundary("bc", max_tokens=4).cut(ids("abcd")) == (3, "stop")
    assert boundary("bc").cut([*ids("a"), EOS, *ids("bc")]) == (2, "stop")


def test_an_eos_or_a_stop_string_on_the_last_allowed_token_is_a_stop() -> None:
    assert boundary(max_tokens=3).cut([*ids("ab"), EOS]) == (3, "stop")
    assert boundary("c", max_tokens=3).cut(ids("abcd")) == (3, "stop")


def test_the_very_first_token_may_end_the_text() -> None:
    for edge, tokens, finish in (
        (boundary(), [EOS], "stop"),
        (boundary("a"), ids("a"), "stop"),
        (boundary(max_tokens=1), ids("ab"), "length"),
    ):
        assert edge.cut(tokens) == (1, finish)


def test_only_the_beginning_of_a_stop_string_is_held_back() -> None:
    edge = boundary("\nUser:", "a very long stop string that never comes")
    shown = []
    for token in ids("a b\nUse it\n"):
        edge.cut([token])
        shown.append("".join(edge.take_pieces()))
    assert shown == ["", "", "a b", "", "", "", "", "\nUse ", "i", "t", ""]


def test_held_back_text_is_released_at_the_end_and_never_past_a_stop() -> None:
    assert run(boundary("xyz"), iter([[*ids("abxy"), EOS]])) == (5, "stop", "abxy")
    assert run(boundary("xyz", max_tokens=4), iter([ids("abxyz")])) == (4, "length", "abxy")
    assert run(boundary("xyz", "bxyzq"), iter([ids("abxyz")])) == (5, "stop", "ab")


def test_max_tokens_inside_a_code_point() -> None:
    assert run(boundary(max_tokens=3), iter([ids("a😀")])) == (3, "length", "a\ufffd")


def test_a_stop_string_may_be_a_character_split_over_blocks() -> None:
    assert run(boundary("😀"), blocks(ids("ab😀cd"), 3)) == (6, "stop", "ab")


@pytest.mark.parametrize(("text", "stop"), [("aaab", "aab"), ("ababac", "abac"), ("aabaabaaab", "aabaaab")])
def test_a_failed_match_may_hold_the_beginning_of_the_next(text: str, stop: str) -> None:
    assert run(boundary(stop), iter([ids(text)])) == (len(text), "stop", text[: -len(stop)])


def test_flushed_bytes_pass_the_same_filter() -> None:
    assert run(boundary("\ufffd", max_tokens=2), iter([ids("a😀")])) == (2, "stop", "a")


def oracle(text: str, stop: Sequence[str]) -> tuple[str, bool]:
    """The text before the stop string that is completed first, the longest of those that end there."""
    for end in range(1, len(text) + 1):
        complete = [len(candidate) for candidate in stop if text[:end].endswith(candidate)]
        if complete:
            return text[: end - max(complete)], True
    return text, False


@given(
    text=st.text("ab😀", max_size=24),
    stop=st.lists(st.text("ab😀", min_size=1, max_size=5), max_size=4),
    cuts=st.lists(st.integers(0, 24), max_size=6),
)
def test_the_filter_finds_what_a_search_of_the_whole_text_finds(text: str, stop: list[str], cuts: list[int]) -> None:
    edges = [0, *sorted(cut for cut in cuts if cut <= len(text)), len(text)]
    stop_filter, shown, stopped = StopFilter(stop), "", False
    for start, end in pairwise(edges):
        part, stopped = stop_filter.feed(text[start:end])
        shown += part
        if stopped:
            break
    assert (shown if stopped else shown + stop_filter.release(), stopped) == oracle(text, stop)


@given(
    text=st.text("ab😀", max_size=16),
    stop=st.lists(st.text("ab😀", min_size=1, max_size=4), max_size=3),
    eos=st.none() | st.integers(0, 40),
    limit=st.integers(1, 40),
    size=st.integers(1, 7),
)
def test_block_length_changes_nothing(text: str, stop: list[str], eos: int | None, limit: int, size: int) -> None:
    tokens = ids(text)
    if eos is not None:
        tokens.insert(min(eos, len(tokens)), EOS)
    one_by_one = run(boundary(*stop, max_tokens=limit), blocks(tokens, 1))
    assert run(boundary(*stop, max_tokens=limit), blocks(tokens, size)) == one_by_one
