"""The text of a session as far as it is committed, and how much of it a client has."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from adasd.core.context import Context, context_hash
from adasd.core.decoding import Round
from adasd.core.errors import InvalidRequest
from adasd.core.progress import GenerationState
from adasd.core.types import TokenLogprobs
from services.gateway.boundary import Boundary
from services.gateway.detokenizer import Detokenizer
from services.gateway.request import GenerationRequest
from services.gateway.sessions import SessionIncompatible

DIGEST_CHARACTERS = 16
POSITION_PATTERN = f"([0-9]{{1,10}})-([0-9a-f]{{{DIGEST_CHARACTERS}}})"


@dataclass(frozen=True, slots=True)
class Position:
    """A place in an answer, as the id of an event names it: generated tokens, and a hash of all ids up to there."""

    tokens: int
    digest: str

    def __str__(self) -> str:
        return f"{self.tokens}-{self.digest}"

    @classmethod
    def parse(cls, text: str, param: str) -> Position:
        """Raises InvalidRequest, naming `param`, for anything but an event's id."""
        found = re.fullmatch(POSITION_PATTERN, text)
        if found is None:
            raise InvalidRequest(f"{param} must be the id of an event, <tokens>-<hash>", param)
        return cls(int(found[1]), found[2])

    def require(self, ids: Sequence[int], prompt_length: int) -> None:
        """Raises SessionIncompatible if these ids, prompt first, reach as far and are others."""
        end = prompt_length + self.tokens
        if end <= len(ids) and _digest(context_hash(ids[:end])) != self.digest:
            raise SessionIncompatible(f"the {self.tokens} tokens that were shown are not those of the session")

    @classmethod
    def of(cls, context: Context) -> Position:
        return cls(context.generated, _digest(context.hash))


def _digest(hash_of_ids: bytes) -> str:
    return hash_of_ids.hex()[:DIGEST_CHARACTERS]


@dataclass(frozen=True, slots=True)
class Passage:
    """What a client is told at once. position: at its end.

    pieces: one a token, of the tokens the client has not had. step: how this gateway decoded them; None where it only
    read them from the record. end: the state behind the text, where the text ends. tokens, logprobs: the ids behind
    `pieces`, and what the target says of each, if that was asked for.
    """

    position: Position
    pieces: tuple[str, ...]
    step: Round | None = None
    end: GenerationState | None = None
    tokens: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()


class Transcript:
    """Context and boundary of one text, grown by decoding or by replaying what was committed: a pure function of the
    committed ids and the request. shown: what the client has; it is not told again.
    """

    def __init__(self, request: GenerationRequest, detokenizer: Detokenizer, shown: Position | None) -> None:
        self.context = Context(request.prompt)
        room = request.limit - len(request.prompt)
        self.boundary = Boundary(request.eos_ids, request.stop, room, detokenizer)
        self._shown = shown
        self._taken = 0
        self._with_logprobs = request.top_logprobs is not None

    def replay(self, tokens: Sequence[int]) -> None:
        """Take in committed tokens. Raises SessionIncompatible for a record that goes on after the end of its text."""
        length, _ = self.boundary.cut(tokens)
        if length < len(tokens):
            raise SessionIncompatible("the record goes on after the end of its text: this gateway reads it differently")
        self.context.extend(tokens)

    def take(self, step: Round | None = None, end: GenerationState | None = None) -> Passage:
        """What the client is to be told now. Raises SessionIncompatible if what it has is not what was committed."""
        pieces, begin = self.boundary.take_pieces(), self._taken
        self._taken += len(pieces)
        if self._shown is not None and not self.behind:
            self._shown.require(self.context.ids, self.context.prompt_length)
            pieces, self._shown = pieces[max(0, self._shown.tokens - begin) :], None
        elif self._shown is not None:
            if end is not None:
                raise SessionIncompatible("the text ends before what was shown of it")
            pieces, step = (), None
        tokens, logprobs = self._entries(len(pieces), step) if self._with_logprobs else ((), ())
        return Passage(Position.of(self.context), pieces, step, end, tokens, logprobs)

    def _entries(self, count: int, step: Round | None) -> tuple[tuple[int, ...], tuple[TokenLogprobs, ...]]:
        """The last tokens and their log-probabilities. Raises SessionIncompatible where nobody knows these any more."""
        logprobs = step.verdict.logprobs if step is not None else ()
        if count > len(logprobs):
            raise SessionIncompatible("the log-probabilities of this answer are not stored: it cannot be told again")
        begin = len(logprobs) - count
        return tuple(self.context.ids[self.context.base - count :]), logprobs[begin:]

    @property
    def behind(self) -> bool:
        """Whether the client has been shown more than is committed here."""
        return self._shown is not None and self._shown.tokens > self.context.generated
