from __future__ import annotations

from tokenizers import Regex, Tokenizer
from tokenizers.decoders import Fuse
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split

from adasd.bench.contexts import lengthened
from adasd.runtime.toy_tokenizer import toy_tokenizer

TEXTS = [f"{word} is what number {index} asks for" for index, word in enumerate(("tea", "jam", "oil", "ice"))]


def test_prompts_of_the_asked_length_end_with_their_own_text_and_begin_differently() -> None:
    tokenizer = toy_tokenizer(64)
    for tokens in (100, 700):
        contents = [messages[0]["content"] for messages in lengthened(TEXTS, tokenizer, tokens)]
        for text, content in zip(TEXTS, contents, strict=True):
            assert -4 <= len(tokenizer.encode(content).ids) - tokens <= 0
            assert content.endswith(text)
        assert len({content[:30] for content in contents}) == len(TEXTS)


def test_a_longer_text_is_cut_at_its_beginning() -> None:
    (messages,) = lengthened([TEXTS[0]], toy_tokenizer(64), 8)
    assert TEXTS[0].endswith(messages[0]["content"])
    assert len(messages[0]["content"]) < len(TEXTS[0])


def test_text_that_is_read_anew_where_it_was_joined_does_not_make_a_prompt_longer() -> None:
    """By itself a text ends in one id for its empty line; where another follows, the line is two."""
    tokenizer = Tokenizer(WordLevel({"tea": 0, "\n\n": 1, "\n": 2, "?": 3}, unk_token="?"))
    tokenizer.pre_tokenizer = Split(Regex(r"\s+(?!\S)|\s|\w+"), "isolated")
    tokenizer.decoder = Fuse()
    for tokens in (10, 11, 50):
        for messages in lengthened(["tea", "tea"], tokenizer, tokens):
            assert tokens - 3 <= len(tokenizer.encode(messages[0]["content"]).ids) <= tokens
