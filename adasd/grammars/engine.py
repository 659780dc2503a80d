"""`adasd.core.grammar` by llguidance: JSON schemas, regular expressions and Lark, as masks over a vocabulary.

Its work is bounded by counts, not by clocks, so what is refused is the same on every machine.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, get_version

from adasd.core.errors import GrammarFault, InvalidRequest
from adasd.core.grammar import PARAM, BoolArray, Grammar

if TYPE_CHECKING:
    from tokenizers import Tokenizer

LIBRARY = get_version()
"""What masks depend on beside the vocabulary and the grammar."""

KEPT_GRAMMARS = 64
"""Compiled, so that the choices and turns of one client need not wait again."""

TRIED_TOKENS = 8
"""Of some text, before a grammar is taken."""

REASON_CHARACTERS = 400
"""Of a reason for a refusal: enough for a line of a grammar and a mark below it."""

JSON_STYLE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": ", "lenient": False}
"""One spelling of every value: a model can neither spend its tokens on blanks nor be unsure about them. Keywords that
are not known to the compiler are refused, not passed over.
"""


def _limits() -> LLParserLimits:
    """A second or two at the very most to begin with, tens of milliseconds a mask, tens of MB a text."""
    return LLParserLimits(
        initial_lexer_fuel=1_000_000,
        step_lexer_fuel=200_000,
        step_max_items=50_000,
        max_items_in_row=2_000,
        max_lexer_states=32_000,
        max_grammar_size=100_000,
        verbose_errors=False,  # a message says what is wrong, not what a client sent
    )


class TextMatcher:
    """`adasd.core.grammar.Matcher`. Not for two threads at once."""

    def __init__(self, matcher: LLMatcher) -> None:
        self._matcher = matcher

    def advance(self, tokens: Sequence[int]) -> int:
        taken = self._matcher.try_consume_tokens(list(tokens))
        self._require_sound()
        return taken

    def rollback(self, count: int) -> None:
        self._matcher.rollback(count)
        self._require_sound()

    def allowed(self) -> BoolArray:
        mask = np.frombuffer(self._matcher.compute_logit_bias(), dtype=np.uint8) > 0
        self._require_sound()
        return mask

    @property
    def accepting(self) -> bool:
        return self._matcher.is_accepting()

    def _require_sound(self) -> None:
        if self._matcher.is_error():
            raise GrammarFault(f"the grammar cannot be followed from here: {_reason(self._matcher)}", PARAM)


class VocabularyGrammars:
    """`adasd.core.grammar.Grammars`. read: the vocabulary's tokenizer, asked for when the first grammar comes."""

    def __init__(self, read: Callable[[], Tokenizer]) -> None:
        self._read = read
        self._lock = threading.Lock()
        self._tokenizer: LLTokenizer | None = None
        self._compiled = lru_cache(KEPT_GRAMMARS)(self._compile)

    def start(self, grammar: Grammar, eos_ids: Collection[int]) -> TextMatcher:
        with self._lock:
            return TextMatcher(self._compiled(grammar, tuple(sorted(eos_ids))).deep_copy())

    def _compile(self, grammar: Grammar, eos_ids: tuple[int, ...]) -> LLMatcher:
        matcher = LLMatcher(self._vocabulary(eos_ids), _spelled(grammar), log_level=0, limits=_limits())
        if matcher.is_error():
            raise InvalidRequest(_reason(matcher), PARAM)
        _try(TextMatcher(matcher.deep_copy()))
        return matcher

    def _vocabulary(self, eos_ids: tuple[int, ...]) -> LLTokenizer:
        if self._tokenizer is None:
            self._tokenizer = LLTokenizer(self._read().to_str(), eos_token=list(eos_ids))
        return self._tokenizer


def _try(matcher: TextMatcher) -> None:
    """Begin some text: most of what is too complex is so from its first tokens on. Raises InvalidRequest."""
    for place in range(TRIED_TOKENS):
        ids = np.flatnonzero(matcher.allowed())
        if not (place or len(ids) or matcher.accepting):
            raise InvalidRequest("no text is what it asks for", PARAM)
        if not len(ids) or matcher.advance([int(ids[-1])]) == 0:
            return


def _spelled(grammar: Grammar) -> str:
    """As llguidance takes it. Raises InvalidRequest for a schema that is no JSON object."""
    match grammar.kind:
        case "regex":
            return LLMatcher.grammar_from_regex(grammar.source)
        case "lark":
            return LLMatcher.grammar_from_lark(grammar.source)
    try:
        return LLMatcher.grammar_from_json_schema(grammar.source, overrides=JSON_STYLE)  # type: ignore[arg-type]
    except ValueError as error:
        raise InvalidRequest(str(error), PARAM) from None


def _reason(matcher: LLMatcher) -> str:
    error = matcher.get_error().split("\n<")[0].strip()
    return "no text is what it asks for" if error.startswith("NoExtension") else error[:REASON_CHARACTERS]
