"""Pieces of text: joined, they are the batch decoding; each of them is whole."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from services.gateway.detokenizer import REPLACEMENT, Decoder
from tests.services.gateway.tokenizers import FAMILIES, byte_level, sentencepiece

DECODERS = {name: Decoder.of(tokenizer) for name, tokenizer in FAMILIES.items()}


def streamed(decoder: Decoder, ids: list[int]) -> list[str]:
    detokenizer = decoder.start()
    return [*(detokenizer.push(token) for token in ids), detokenizer.flush()]


def ids_of(tokenizer: Tokenizer, *contents: str) -> list[int]:
    found = [tokenizer.token_to_id(content) for content in contents]
    assert None not in found
    return found  # type: ignore[return-value]


@pytest.mark.parametrize("family", FAMILIES)
@given(data=st.data())
def test_joined_pieces_are_the_batch_decoding_of_any_ids(family: str, data: st.DataObject) -> None:
    size = FAMILIES[family].get_vocab_size()
    ids = data.draw(st.lists(st.integers(0, size + 3), max_size=40))
    assert "".join(streamed(DECODERS[family], ids)) == FAMILIES[family].decode(ids)


@pytest.mark.parametrize("family", ["byte-level", "sentencepiece", "toy"])
@given(text=st.text(st.sampled_from("ab .\n\t é你😀🏽\u200d\ufffd"), max_size=30))
def test_joined_pieces_are_the_text_and_no_piece_is_broken(family: str, text: str) -> None:
    ids = FAMILIES[family].encode(text, add_special_tokens=False).ids
    pieces = streamed(DECODERS[family], ids)
    assert "".join(pieces) == text
    if REPLACEMENT not in text:
        assert not any(REPLACEMENT in piece for piece in pieces)


def test_a_code_point_comes_whole_with_its_last_byte() -> None:
    ids = FAMILIES["toy"].encode("a😀b").ids
    assert streamed(DECODERS["toy"], ids) == ["a", "", "", "", "😀", "b", ""]


def test_a_broken_code_point_is_replaced_when_refuted_and_at_the_end() -> None:
    tokens = FAMILIES["toy"].encode("😀").ids
    letter = FAMILIES["toy"].encode("x").ids
    assert streamed(DECODERS["toy"], [*tokens[:2], *letter, *tokens[:3]]) == [
        "", "", REPLACEMENT + "x", "", "", "", REPLACEMENT,
    ]  # fmt: skip


def test_garbage_does_not_stall_the_text() -> None:
    tokenizer = byte_level()
    stray = ids_of(tokenizer, "ī", "ī", "ī")  # bytes that no code point begins with
    pieces = streamed(Decoder.of(tokenizer), [*stray, *stray])
    assert pieces == ["", *[REPLACEMENT] * 6]


def test_a_run_of_fallback_bytes_is_judged_as_a_whole() -> None:
    tokenizer = sentencepiece()
    euro, letter = ids_of(tokenizer, "<0xE2>", "<0x82>", "<0xAC>"), ids_of(tokenizer, "a")
    decoder = Decoder.of(tokenizer)
    assert streamed(decoder, [*euro, *letter]) == ["", "", "", "€a", ""]
    assert streamed(decoder, [*euro, *ids_of(tokenizer, "<0xFF>"), *letter])[4] == REPLACEMENT * 4 + "a"


def test_special_tokens_and_padding_ids_have_no_text() -> None:
    tokenizer = byte_level()
    (special,) = ids_of(tokenizer, "<|im_start|>")
    (letter,) = ids_of(tokenizer, "a")
    assert streamed(Decoder.of(tokenizer), [special, letter, 10_000, letter]) == ["", "a", "", "a", ""]


def test_the_window_stays_short() -> None:
    detokenizer = DECODERS["byte-level"].start()
    for token in FAMILIES["byte-level"].encode("the quick brown fox 😀 " * 20).ids:
        detokenizer.push(token)
        assert len(detokenizer._window) <= 8
