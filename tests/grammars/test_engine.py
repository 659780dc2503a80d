"""llguidance behind the core's Protocols: what masks mean, what is refused and why, and what hostile grammars cost."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from adasd.core.errors import InvalidRequest
from adasd.core.grammar import Grammar, Progress
from adasd.grammars.engine import VocabularyGrammars
from adasd.runtime.toy_tokenizer import END_ID, toy_tokenizer
from tests.services.gateway.tokenizers import byte_level

EOS = [END_ID]
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "tags": {"type": "array", "items": {"enum": ["a", "é"]}},
    },
    "required": ["name", "tags"],
    "additionalProperties": False,
}
JSON = Grammar("json_schema", json.dumps(PERSON))
BYTES = toy_tokenizer(257)


@pytest.fixture(scope="module", params=["bytes", "merged"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return BYTES if request.param == "bytes" else byte_level()


@pytest.fixture(scope="module")
def grammars(tokenizer: Tokenizer) -> VocabularyGrammars:
    return VocabularyGrammars(lambda: tokenizer)


def refusal(kind: Any, source: str) -> str:
    with pytest.raises(InvalidRequest) as raised:
        VocabularyGrammars(lambda: BYTES).start(Grammar(kind, source), EOS)
    return str(raised.value)


def walk(grammars: VocabularyGrammars, grammar: Grammar, seed: int, length: int = 200) -> list[int]:
    """A text of the grammar, uniformly from every mask; its EOS included if it comes that far."""
    rng, text, progress = np.random.default_rng(seed), list[int](), Progress(grammars.start(grammar, EOS))
    while len(text) < length and END_ID not in text:
        (mask,) = progress.allowed(text, 1, EOS)
        text.append(int(rng.choice(np.flatnonzero(mask))))
    return text


def test_what_masks_let_through_is_of_the_grammar(grammars: VocabularyGrammars, tokenizer: Tokenizer) -> None:
    ended = 0
    for seed in range(12):
        text = walk(grammars, JSON, seed)
        if text[-1] == END_ID:
            ended += 1
            found = json.loads(tokenizer.decode(text))
            assert isinstance(found["name"], str)
            assert len(found["name"]) <= 6
            assert set(found["tags"]) <= {"a", "é"}
    assert ended > 5


@pytest.mark.parametrize("text", ['{"name": "Bo", "tags": []}', '{"name": "\\n\\"é", "tags": ["a", "é"]}'])
def test_a_text_of_the_grammar_is_let_through(grammars: VocabularyGrammars, tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    masks = Progress(grammars.start(JSON, EOS)).allowed(ids, len(ids) + 1, EOS)
    assert all(mask[token] for mask, token in zip(masks, [*ids, END_ID], strict=True))
    assert np.flatnonzero(masks[-1]).tolist() == EOS
    assert not masks[:-1, END_ID].any()


@settings(deadline=None, max_examples=20)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 60)), min_size=1, max_size=6))
def test_the_way_to_a_place_does_not_matter(moves: list[tuple[int, int]]) -> None:
    """Advanced and rolled back at will, or replayed by another replica: the same masks."""
    grammars = SHARED
    texts = [walk(grammars, JSON, seed) for seed in range(4)]
    progress = Progress(grammars.start(JSON, EOS))
    for which, length in moves:
        text = texts[which][: min(length, len(texts[which]) - 1)]
        fresh = Progress(grammars.start(JSON, EOS))
        np.testing.assert_array_equal(progress.allowed(text, 1, EOS), fresh.allowed(text, 1, EOS))


SHARED = VocabularyGrammars(lambda: BYTES)


def test_a_regular_expression_is_of_the_whole_text() -> None:
    ids = BYTES.encode("abab").ids
    masks = Progress(SHARED.start(Grammar("regex", "(ab)+"), EOS)).allowed(ids, 5, EOS)
    a, b = BYTES.encode("ab").ids
    assert [np.flatnonzero(mask).tolist() for mask in masks] == [[a], [b], [END_ID, a], [b], [END_ID, a]]


def test_control_tokens_are_no_text_but_where_a_grammar_names_them() -> None:
    tokenizer = toy_tokenizer(257)
    tokenizer.add_special_tokens(["<tool_call>"])
    grammars = VocabularyGrammars(lambda: tokenizer)
    call = tokenizer.token_to_id("<tool_call>")
    (mask,) = Progress(grammars.start(Grammar("regex", "(.|\n)*"), EOS)).allowed([], 1, EOS)
    assert not mask[call]
    progress = Progress(grammars.start(Grammar("lark", 'start: <tool_call> %json {"type": "object"}'), EOS))
    masks = progress.allowed([call], 2, EOS)
    assert np.flatnonzero(masks[0]).tolist() == [call]
    assert np.flatnonzero(masks[1]).tolist() == tokenizer.encode("{").ids


@pytest.mark.parametrize(
    ("kind", "source", "reason"),
    [
        ("json_schema", '{"type": "array", "uniqueItems": true}', "uniqueItems"),
        ("json_schema", '{"not": {}}', "not"),
        ("json_schema", '{"type": "strin"}', "strin"),
        ("json_schema", '{"type": "string", "format": "phone"}', "phone"),
        ("json_schema", '{"$ref": "http://example.com/schema"}', "example.com"),
        ("json_schema", '{"$ref": "#/$defs/none"}', "none"),
        ("json_schema", '{"minimum": 2, "maximum": 1, "type": "integer"}', "minimum"),
        ("json_schema", '{"type": ', "EOF"),
        ("json_schema", "[]", "object"),
        ("regex", "(", "unclosed"),
        ("regex", r"(a)\1", "backreferences"),
        ("regex", "(?=a)b", "look-around"),
        ("regex", r"[^\s\S]", "no text"),
        ("lark", "start: other", "other"),
        ("lark", "a: /b/", "start"),
        ("lark", "start: start", "no text"),
        ("lark", 'start: "\0', ""),
    ],
)
def test_refused_with_the_reason(kind: str, source: str, reason: str) -> None:
    message = refusal(kind, source)
    assert reason in message
    assert "<state>" not in message
    assert len(message) <= 400


NESTED = '{"type": "object", "properties": {"a": ' * 400 + "{}" + "}}" * 400
HOSTILE = [
    ("regex", "(a|b)*a(a|b){40}"),
    ("regex", "(((a{1,100}){1,100}){1,100})"),
    ("regex", "(x+x+)+y"),
    ("json_schema", NESTED),
    (
        "json_schema",
        json.dumps({"allOf": [{"anyOf": [{"required": [f"a{i}{j}"]} for j in range(6)]} for i in range(8)]}),
    ),
    ("json_schema", json.dumps({"type": "string", "pattern": "(a|b)*a(a|b){30}"})),
    ("json_schema", json.dumps({"properties": {f"k{i}": {"pattern": f"^(a|b)*{i}.{{20}}$"} for i in range(500)}})),
    ("lark", 'start: a*\na: "x" a | a "y" | a a | "z"'),
    ("lark", "start: a0\n" + "\n".join(f"a{i}: a{i + 1} a{i + 1}" for i in range(40)) + '\na40: "x"?'),
    ("lark", "start: " + "(" * 3000 + '"a"' + ")" * 3000),
]


@pytest.mark.parametrize(("kind", "source"), HOSTILE, ids=range(len(HOSTILE)))
def test_a_hostile_grammar_is_refused_or_given_up_or_followed(kind: Any, source: str) -> None:
    """It neither hangs nor ends the process, and the next one is as good as any."""
    with suppress(InvalidRequest):
        assert len(walk(SHARED, Grammar(kind, source), 1, 100)) > 0
    assert len(walk(SHARED, Grammar("regex", "ok"), 1)) == 3


def test_several_threads_may_begin_texts() -> None:
    grammars = VocabularyGrammars(lambda: BYTES)
    with ThreadPoolExecutor(8) as pool:
        texts = list(pool.map(lambda seed: walk(grammars, JSON, seed % 2), range(16)))
    assert texts == texts[:2] * 8


def test_the_vocabulary_is_read_when_it_is_needed_and_once() -> None:
    reads = []

    def read() -> Tokenizer:
        reads.append(1)
        return BYTES

    grammars = VocabularyGrammars(read)
    assert not reads
    for source in ("a", "b", "a"):
        grammars.start(Grammar("regex", source), EOS)
    assert len(reads) == 1
