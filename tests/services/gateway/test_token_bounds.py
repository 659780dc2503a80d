"""A text is refused for its length before it is tokenised, and never one that would have had room."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, normalizers

from services.gateway.control_tokens import PromptEncoder
from services.gateway.token_bounds import TokenBound
from tests.services.gateway.conftest import Gateway
from tests.services.gateway.tokenizers import FAMILIES, IM_END, IM_START, byte_level, sentencepiece


def composing() -> Tokenizer:
    tokenizer = byte_level()
    tokenizer.normalizer = normalizers.NFC()
    return tokenizer


def incomplete() -> Tokenizer:
    """Without a token for some bytes, which it leaves out, as SmolLM2's does."""
    description = json.loads(byte_level().to_str())
    model = description["model"]
    model["merges"] = []
    model["vocab"] = {f"<unused-{token}>" if token in "aÃ" else token: id for token, id in model["vocab"].items()}
    return Tokenizer.from_str(json.dumps(description))


BOUNDED = {"byte-level": byte_level(), "composing": composing(), "incomplete": incomplete(), "toy": FAMILIES["toy"]}


TEXTS = (
    st.text(st.characters(exclude_categories=["Cs"]))
    | st.text("a e\u0301\u212b\U0001d15e\n<|>", max_size=200)
    | st.lists(st.sampled_from([IM_START, "<|end|>", " quick", "é"]), max_size=40).map("".join)
)


@pytest.mark.parametrize("name", BOUNDED)
@settings(max_examples=60, deadline=None)
@given(text=TEXTS)
def test_a_bound_is_never_above_the_truth(name: str, text: str) -> None:
    ids = BOUNDED[name].encode(text, add_special_tokens=False).ids
    assert TokenBound.of(BOUNDED[name]).least(text) <= len(ids)


@pytest.mark.parametrize("name", BOUNDED)
def test_long_texts_have_one(name: str) -> None:
    assert TokenBound.of(BOUNDED[name]).least("the quick brown fox " * 1000) > 500


def stripping(tokenizer: Tokenizer) -> Tokenizer:
    tokenizer.add_special_tokens([AddedToken("<mask>", lstrip=True)])
    return tokenizer


def lowercasing(tokenizer: Tokenizer) -> Tokenizer:
    tokenizer.normalizer = normalizers.Strip()
    return tokenizer


@pytest.mark.parametrize("tokenizer", [sentencepiece(), stripping(byte_level()), lowercasing(byte_level())])
def test_nothing_is_known_of_tokenizers_that_drop_text(tokenizer: Tokenizer) -> None:
    assert TokenBound.of(tokenizer).least("a" * 100_000) == 0


def test_marks_do_not_count() -> None:
    tokenizer = byte_level()
    encoder = PromptEncoder(tokenizer, {IM_END: tokenizer.token_to_id(IM_END)})
    content = IM_END * 50
    assert encoder.least(encoder.mark(content)) == encoder.least(content) <= len(encoder.encode(encoder.mark(content)))


async def test_a_prompt_that_is_too_long_for_certain_is_not_tokenised(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    def tokenised(*_: Any) -> None:
        raise AssertionError("tokenised")

    monkeypatch.setattr(PromptEncoder, "encode", tokenised)
    for reply in (await gateway.post("a" * 90_000), await gateway.complete("a" * 90_000)):
        error = reply.json()["error"]
        assert (reply.status_code, error["code"]) == (400, "context_length_exceeded")
        assert "at least" in error["message"]
        assert error["param"] in ("messages", "prompt")
