"""One choice of an answer: how its text comes, and how it is written, for chats and for texts that go on."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

from adasd.core.errors import Conflict
from adasd.core.progress import GenerationState
from adasd.core.verdicts import TokenLogprobs
from adasd.state.base import Ownership
from services.gateway.call_writer import CallWriter
from services.gateway.engine import Engine, Turn
from services.gateway.parts import Part
from services.gateway.sessions import Session
from services.gateway.spelling import Spelling
from services.gateway.telling import Telling
from services.gateway.transcript import Passage

Body = dict[str, Any]
Entry = tuple[int, TokenLogprobs]
CONTINUATION_BYTE = 0b10
"""How the bytes of a character begin after its first."""


class Writer(ABC):
    """Writes one choice; remembers how much of its text has been given entries."""

    def __init__(self, session: Session, spelling: Spelling) -> None:
        self._presentation = session.presentation
        self._wanted = session.generation.top_logprobs
        self._spelling = spelling
        self._first = True

    @abstractmethod
    def beginning(self) -> Body | None:
        """The choice of a stream's first event, if it has one of its own."""

    @abstractmethod
    def piece(self, part: Part, entries: Sequence[Entry], finish: str | None = None) -> Body:
        """The choice of an event. entries: of all tokens up to here that had none."""

    @abstractmethod
    def whole(self, parts: Sequence[Part], entries: Sequence[Entry], finish: str | None) -> Body:
        """The choice of an answer that is not streamed. parts: all of it."""

    @abstractmethod
    def _logprobs(self, entries: Sequence[Entry]) -> Body: ...

    def _choice(self, entries: Sequence[Entry], finish: str | None) -> Body:
        logprobs = self._logprobs(entries) if self._wanted is not None and entries else None
        return {"index": self._presentation.index, "logprobs": logprobs, "finish_reason": finish}

    def _spelled(self, token: int) -> tuple[str, list[int] | None]:
        return self._spelling.of(token, self._first)


class ChatWriter(Writer):
    """Choices of a chat."""

    def __init__(self, session: Session, spelling: Spelling) -> None:
        super().__init__(session, spelling)
        self._calls = CallWriter(session) if session.generation.calls is not None else None

    def beginning(self) -> Body:
        return {**self._choice((), None), "delta": {"role": "assistant", "content": None if self._calls else ""}}

    def piece(self, part: Part, entries: Sequence[Entry], finish: str | None = None) -> Body:
        return {**self._choice(entries, finish), "delta": {} if finish else self._delta(part)}

    def whole(self, parts: Sequence[Part], entries: Sequence[Entry], finish: str | None) -> Body:
        text = "".join(part.text for part in parts if part.call is None)
        calls = self._calls.whole(parts) if self._calls else []
        content = text or (None if calls else "")
        message = {"role": "assistant", "content": content, "refusal": None} | ({"tool_calls": calls} if calls else {})
        return {**self._choice(entries, finish), "message": message}

    def _delta(self, part: Part) -> Body:
        if part.call is None:
            return {"content": part.text}
        assert self._calls is not None, "calls are read where there may be some"
        return {"tool_calls": [self._calls.delta(part)]}

    def _logprobs(self, entries: Sequence[Entry]) -> Body:
        return {"content": [self._entry(*entry) for entry in entries], "refusal": None}

    def _entry(self, token: int, logprobs: TokenLogprobs) -> Body:
        top = zip(logprobs.top_ids, logprobs.top, strict=True)
        alternatives = [self._named(other, logprob) for other, logprob in top]
        entry = {**self._named(token, logprobs.logprob), "top_logprobs": alternatives}
        self._first = False
        return entry

    def _named(self, token: int, logprob: float) -> Body:
        text, raw = self._spelled(token)
        return {"token": text, "logprob": logprob, "bytes": raw}


class TextWriter(Writer):
    """Choices of a text that goes on. Offsets count characters of this text, from 0."""

    def __init__(self, session: Session, spelling: Spelling) -> None:
        super().__init__(session, spelling)
        self._characters = 0

    def beginning(self) -> Body | None:
        return self.piece(Part(self._presentation.echo), ()) if self._presentation.echo else None

    def piece(self, part: Part, entries: Sequence[Entry], finish: str | None = None) -> Body:
        return {**self._choice(entries, finish), "text": part.text}

    def whole(self, parts: Sequence[Part], entries: Sequence[Entry], finish: str | None) -> Body:
        text = self._presentation.echo + "".join(part.text for part in parts)
        return self.piece(Part(text), entries, finish)

    def _logprobs(self, entries: Sequence[Entry]) -> Body:
        texts: list[str] = []
        offsets: list[int] = []
        tops: list[dict[str, float]] = []
        for token, logprobs in entries:
            text, raw = self._spelled(token)
            top = zip(map(self._spelled, logprobs.top_ids), logprobs.top, strict=True)
            tops.append({text: logprobs.logprob} | {name: logprob for (name, _), logprob in top})
            texts.append(text)
            offsets.append(self._offset(bytes(raw or ())))
            self._first = False
        values = [logprobs.logprob for _, logprobs in entries]
        return {
            "tokens": texts,
            "token_logprobs": values,
            "top_logprobs": tops if self._wanted else None,
            "text_offset": offsets,
        }

    def _offset(self, raw: bytes) -> int:
        """Where the character of a token's first byte begins."""
        begun = sum(byte >> 6 != CONTINUATION_BYTE for byte in raw)
        inside = bool(raw) and raw[0] >> 6 == CONTINUATION_BYTE
        offset = max(0, self._characters - inside)
        self._characters += begun
        return offset


class Choice:
    """One choice on its way to a client. turn: what it begins; None where a session is only told.

    tokens: of it that the client has. end: the state behind its text, once that has ended, for the reason `finish`.
    parts: of an answer that is told at once.
    """

    def __init__(self, engine: Engine, telling: Telling, turn: Turn | None = None) -> None:
        self.telling = telling
        self.session = telling.session
        writer = ChatWriter if self.session.presentation.kind == "chat" else TextWriter
        self.writer: Writer = writer(self.session, engine.text.spelling)
        self.begun = telling.resumed  # whether the client has had what a stream begins with
        self.tokens = 0
        self.end: GenerationState | None = None
        self.finish: str | None = None
        self.parts: list[Part] = []
        self.entries: list[Entry] = []  # of tokens that were not told yet
        self._engine = engine
        self._turn = turn
        self._created = False
        self._before = telling.times.arrived

    @property
    def ownership(self) -> Ownership | None:
        """Under which the session is run for this answer, or may be while it begins; None once that was lost."""
        begins = self._turn is not None and not self._created
        return self._engine.ownership(self._turn) if self._turn and begins else self.telling.ownership

    async def passages(self) -> AsyncGenerator[Passage, None]:
        """What the client is told; counted where the session begins here. Raises Conflict for one that was stopped."""
        held = None
        if self._turn is not None:
            with self.telling.times.step("create"):
                held = await self._engine.begin(self._turn)
            self.telling.ownership, self._created = held.ownership, True
        async with aclosing(self.telling.passages(held)) as passages:
            async for passage in passages:
                if self._turn is not None:
                    self._count(passage)
                self.tokens = passage.position.tokens
                self.entries.extend(zip(passage.tokens, passage.logprobs, strict=True))
                yield passage

    def taken(self) -> list[Entry]:
        """The entries that are told now."""
        entries, self.entries = self.entries, []
        return entries

    def finished(self, end: GenerationState, reason: str | None) -> None:
        """The text has ended. Raises Conflict where it was not allowed to."""
        if end.finish_reason == "cancelled":
            raise Conflict("the session was stopped")
        self.end, self.finish = end, reason

    def _count(self, passage: Passage) -> None:
        metrics, now = self._engine.metrics, time.perf_counter()
        count = passage.position.tokens - self.tokens
        if self.tokens == 0:
            metrics.first_token(now - self._before)
        elif count > 0:
            metrics.tokens(count, now - self._before)
        self._before = now
        if passage.end is not None:
            metrics.learned(passage.end)
