"""What single tokens are written as."""

from __future__ import annotations

import pytest

from services.gateway.detokenizer import Decoder
from services.gateway.spelling import Spelling
from tests.services.gateway.tokenizers import FAMILIES


@pytest.mark.parametrize("family", ["byte-level", "sentencepiece", "toy"])
@pytest.mark.parametrize("text", ["hello fox", "naïve 你好 😀🏽 a", "a b  c."])
def test_the_bytes_of_all_tokens_are_those_of_the_text(family: str, text: str) -> None:
    tokenizer = FAMILIES[family]
    spelling = Spelling(Decoder.of(tokenizer))
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    spelled = [spelling.of(token, first=place == 0) for place, token in enumerate(ids)]
    assert b"".join(bytes(raw or ()) for _, raw in spelled) == tokenizer.decode(ids).encode()
    assert all(bytes(raw or ()) == written.encode() for written, raw in spelled if not written.startswith("bytes:"))


def test_part_of_a_character_is_named_by_its_bytes() -> None:
    spelling = Spelling(Decoder.of(FAMILIES["toy"]))
    (first, *_) = FAMILIES["toy"].encode("😀").ids
    assert spelling.of(first) == ("bytes:\\xf0", [0xF0])


def test_control_tokens_and_padding_have_no_bytes() -> None:
    spelling = Spelling(Decoder.of(FAMILIES["toy"]))
    assert spelling.of(0) == ("<|end|>", None)
    assert spelling.of(100_000) == ("", None)
