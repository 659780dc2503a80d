"""Grammars that a text must follow, and how far along one a text is: masks of the ids that may come next.

What a grammar means to a vocabulary is behind two Protocols; `adasd.grammars` implements them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, get_args

import numpy as np
from numpy.typing import NDArray

from adasd.core.context import shared_prefix
from adasd.core.errors import GrammarFault, InvalidRequest

BoolArray = NDArray[np.bool_]

GrammarKind = Literal["json_schema", "regex", "lark"]
MAX_GRAMMAR_CHARACTERS = 64 * 1024
PARAM = "structured_outputs"
"""What faults name that show only while a text is written."""


@dataclass(frozen=True, slots=True)
class Grammar:
    """What a whole text must be, from its first generated token to its EOS. Validated on construction.

    kind: of `source`: a JSON schema as JSON text, a regular expression that the whole text matches, or a grammar in
    llguidance's dialect of Lark, whose rule `start` is the text.
    """

    kind: GrammarKind
    source: str

    def __post_init__(self) -> None:
        if self.kind not in get_args(GrammarKind):
            raise InvalidRequest(f"unknown kind of grammar: {self.kind!r}", PARAM)
        if len(self.source) > MAX_GRAMMAR_CHARACTERS:
            raise InvalidRequest(
                f"a grammar has at most {MAX_GRAMMAR_CHARACTERS} characters, got {len(self.source)}", PARAM
            )


class Matcher(Protocol):
    """Where a text stands in its grammar. After a GrammarFault it is of no further use."""

    def advance(self, tokens: Sequence[int]) -> int:
        """Take in tokens, one after another, up to the first that the grammar does not allow; how many were taken."""
        ...

    def rollback(self, count: int) -> None:
        """Forget the last `count` tokens taken."""
        ...

    def allowed(self) -> BoolArray:
        """Which ids may come next, [ids], EOS aside; what lies past it may not. Raises GrammarFault if it gives up."""
        ...

    @property
    def accepting(self) -> bool:
        """Whether the text may end here."""
        ...


class Grammars(Protocol):
    """Grammars over one vocabulary. Safe to use from several threads, unlike the matchers."""

    def start(self, grammar: Grammar, eos_ids: Collection[int]) -> Matcher:
        """At the beginning of a text. Raises InvalidRequest for what is no grammar, with the reason.

        eos_ids: of the vocabulary. The first of a grammar takes as long as it is complex, those after it no time.
        """
        ...


class Progress:
    """One text's way through its grammar: kept where it is, taken back to what a text shares with the last one."""

    def __init__(self, matcher: Matcher) -> None:
        self._matcher = matcher
        self._taken: list[int] = []

    def allowed(self, text: list[int], rows: int, eos_ids: Collection[int]) -> BoolArray:
        """Masks of the last `rows` positions of a text, [rows, ids]: of what follows it, and of those before.

        An EOS is allowed exactly where the text may end. Past a token that the grammar does not allow, or an EOS, no
        text goes on, so there everything is. Raises GrammarFault where the text before all of them does not follow its
        grammar, and where nothing may come next.
        """
        begin = len(text) - rows + 1
        if not self._move(text[:begin]):
            raise GrammarFault("the text so far does not follow its grammar", PARAM)
        masks = [self._next(eos_ids)]
        for end in range(begin + 1, len(text) + 1):
            if text[end - 1] in eos_ids or not self._move(text[:end]):
                break
            masks.append(self._next(eos_ids))
        masks += [np.ones_like(masks[0])] * (rows - len(masks))
        return np.stack(masks)

    def _move(self, text: list[int]) -> bool:
        """Be where this text is; whether the grammar allows it."""
        shared = shared_prefix(self._taken, text)
        if shared < len(self._taken):
            self._matcher.rollback(len(self._taken) - shared)
            del self._taken[shared:]
        rest = text[shared:]
        self._taken += rest[: self._matcher.advance(rest)]
        return len(self._taken) == len(text)

    def _next(self, eos_ids: Collection[int]) -> BoolArray:
        mask = self._matcher.allowed()
        ending = [token for token in eos_ids if token < len(mask)]
        mask[ending] = self._matcher.accepting
        if not mask.any():
            raise GrammarFault("no token of this vocabulary goes on with the text as its grammar wants it", PARAM)
        return mask
