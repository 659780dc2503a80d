from __future__ import annotations

from adasd.bench.contexts import lengthened
from adasd.runtime.toy_tokenizer import toy_tokenizer

TEXTS = [f"{word} is what number {index} asks for" for index, word in enumerate(("tea", "jam", "oil", "ice"))]


def test_prompts_of_the_asked_length_end_with_their_own_text_and_begin_differently() -> None:
    tokenizer = toy_tokenizer(64)
    for tokens in (100, 700):
        contents = [messages[0]["content"] for messages in lengthened(TEXTS, tokenizer, tokens)]
        for text, content in zip(TEXTS, contents, strict=True):
            assert abs(len(tokenizer.encode(content).ids) - tokens) <= 4
            assert content.endswith(text)
        assert len({content[:30] for content in contents}) == len(TEXTS)


def test_a_longer_text_is_cut_at_its_beginning() -> None:
    (messages,) = lengthened([TEXTS[0]], toy_tokenizer(64), 8)
    assert TEXTS[0].endswith(messages[0]["content"])
    assert len(messages[0]["content"]) < len(TEXTS[0])
