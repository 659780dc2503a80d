"""The text of a session as far as it is committed, and how much of it a client has."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from adasd.core.context import Context, context_hash
from adasd.core.errors import InvalidRequest
from adasd.core.progress import GenerationState
from adasd.core.verdicts import TokenLogprobs
from services.gateway.call_boundary import boundary_of
from services.gateway.detokenizer import Detokenizer
from services.gateway.parts import Part
from services.gateway.request import GenerationRequest
from services.gateway.rounds import Rounds
from services.gateway.sessions import SessionIncompatible

DIGEST_CHARACTERS = 16
POSITION_PATTERN = rf"([0-9]{{1,10}})-([0-9a-f]{{{DIGEST_CHARACTERS}}})(?:\.([0-9]{{1,6}}))?"


@dataclass(frozen=True, slots=True)
class Position:
    """A place in an answer, as the id of an event names it: generated tokens, and a hash of all ids up to there.

    parts: so many of what the last token tells, where that is not all.
    """

    tokens: int
    digest: str
    parts: int | None = None

    def __str__(self) -> str:
        return f"{self.tokens}-{self.digest}" + ("" if self.parts is None else f".{self.parts}")

    @classmethod
    def parse(cls, text: str, param: str) -> Position:
        """Raises InvalidRequest, naming `param`, for anything but an event's id."""
        found = re.fullmatch(POSITION_PATTERN, text)
        if found is None:
            raise InvalidRequest(f"{param} must be the id of an event, <tokens>-<hash>", param)
        return cls(int(found[1]), found[2], None if found[3] is None else int(found[3]))

    def require(self, ids: Sequence[int], prompt_length: int) -> None:
        """Raises SessionIncompatible if these ids, prompt first, reach as far and are others."""
        end = prompt_length + self.tokens
        if end <= len(ids) and _digest(context_hash(ids[:end])) != self.digest:
            raise SessionIncompatible(f"the {self.tokens} tokens that were shown are not those of the session")

    def before(self, token: int, part: int) -> bool:
        """Whether that part of what the answer's token tells comes after this place. Both count from 1."""
        return token > self.tokens or (token == self.tokens and self.parts is not None and part > self.parts)

    @classmethod
    def of(cls, context: Context) -> Position:
        return cls(context.generated, _digest(context.hash))


def _digest(hash_of_ids: bytes) -> str:
    return hash_of_ids.hex()[:DIGEST_CHARACTERS]


@dataclass(frozen=True, slots=True)
class Passage:
    """What a client is told at once. position: at its end.

    pieces: one a token, of the tokens the client has not had. parts: what it is told of them, each with the place after
    it. rounds: how this gateway decoded them; None where it only read them from the record. end: the state behind the
    text, where the text ends, for the reason `finish`. tokens, logprobs: the ids behind `pieces`, and what the target
    says of each, if that was asked for.
    """

    position: Position
    pieces: tuple[str, ...]
    parts: tuple[tuple[Part, Position], ...] = ()
    rounds: Rounds | None = None
    end: GenerationState | None = None
    finish: str | None = None
    tokens: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()


@dataclass(frozen=True, slots=True)
class _Numbered:
    """A part, the token of the answer that told it, its number among that token's, and whether it is the last of those.
    Both numbers count from 1.
    """

    part: Part
    token: int
    number: int
    last: bool


def _numbered(parts: Sequence[Sequence[Part]], begin: int) -> list[_Numbered]:
    """begin: tokens of the answer before these."""
    return [
        _Numbered(part, token, number, number == len(of_token))
        for token, of_token in enumerate(parts, begin + 1)
        for number, part in enumerate(of_token, 1)
    ]


def _joined(run: Sequence[_Numbered]) -> Part:
    first = run[0].part
    return first if len(run) == 1 else replace(first, text="".join(entry.part.text for entry in run))


class Transcript:
    """Context and boundary of one text, grown by decoding or by replaying what was committed: a pure function of the
    committed ids and the request. shown: what the client has; it is not told again.
    """

    def __init__(self, request: GenerationRequest, detokenizer: Detokenizer, shown: Position | None) -> None:
        self.context = Context(request.prompt)
        room = request.limit - len(request.prompt)
        self.boundary = boundary_of(request, room, detokenizer)
        self._shown = shown
        self._taken = 0
        self._with_logprobs = request.top_logprobs is not None

    def replay(self, tokens: Sequence[int]) -> None:
        """Take in committed tokens. Raises SessionIncompatible for a record that goes on after the end of its text."""
        length, _ = self.boundary.cut(tokens)
        if length < len(tokens):
            raise SessionIncompatible("the record goes on after the end of its text: this gateway reads it differently")
        self.context.extend(tokens)

    def take(self, rounds: Rounds | None = None, end: GenerationState | None = None) -> Passage:
        """What the client is to be told now. Raises SessionIncompatible if what it has is not what was committed."""
        pieces, begin, shown = self.boundary.take_pieces(), self._taken, self._shown
        parts = _numbered(self.boundary.take_parts(pieces), begin)
        self._taken += len(pieces)
        if shown is not None and not self.behind:
            shown.require(self.context.ids, self.context.prompt_length)
            parts = [entry for entry in parts if shown.before(entry.token, entry.number)]
            pieces, self._shown = pieces[max(0, shown.tokens - begin) :], None
        elif shown is not None:
            if end is not None:
                raise SessionIncompatible("the text ends before what was shown of it")
            pieces, parts, rounds = (), [], None
        tokens, logprobs = self._entries(len(pieces), rounds) if self._with_logprobs else ((), ())
        reason, position = end.finish_reason if end is not None else None, Position.of(self.context)
        return Passage(
            position,
            pieces,
            self._placed(parts, position),
            rounds,
            end,
            self.boundary.told_reason(reason) if reason is not None else None,
            tokens,
            logprobs,
        )

    def _placed(self, parts: Sequence[_Numbered], end: Position) -> tuple[tuple[Part, Position], ...]:
        """As few parts as tell the same, each with the place after it; after the last that is the passage's `end`."""
        runs: list[list[_Numbered]] = []
        for entry in parts:
            if runs and runs[-1][-1].part.goes_on_with(entry.part):
                runs[-1].append(entry)
            else:
                runs.append([entry])
        places = [self._place(run[-1]) for run in runs[:-1]] + [end]
        return tuple(zip(map(_joined, runs), places, strict=False))

    def _place(self, entry: _Numbered) -> Position:
        ids = self.context.ids[: self.context.prompt_length + entry.token]
        return Position(entry.token, _digest(context_hash(ids)), None if entry.last else entry.number)

    def _entries(self, count: int, rounds: Rounds | None) -> tuple[tuple[int, ...], tuple[TokenLogprobs, ...]]:
        """The last tokens and their log-probabilities. Raises SessionIncompatible where nobody knows these any more."""
        logprobs = rounds.logprobs if rounds is not None else ()
        if count > len(logprobs):
            raise SessionIncompatible("the log-probabilities of this answer are not stored: it cannot be told again")
        begin = len(logprobs) - count
        return tuple(self.context.ids[self.context.base - count :]), logprobs[begin:]

    @property
    def behind(self) -> bool:
        """Whether the client has been shown more than is committed here."""
        return self._shown is not None and self._shown.tokens > self.context.generated
