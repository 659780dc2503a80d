"""From token ids to text, piece by piece: the pieces joined equal the batch decoding of all ids."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from tokenizers import Tokenizer

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_BYTE_TOKEN = re.compile(r"<0x[0-9A-F]{2}>")


class Detokenizer(Protocol):
    """Text of a growing sequence of ids."""

    def push(self, token: int) -> str:
        """What the text is known to go on with after this token; empty while a code point is incomplete."""
        ...

    def flush(self) -> str:
        """The rest, once no more tokens come; bytes that are no text become U+FFFD."""
        ...


@dataclass(frozen=True, slots=True)
class Decoder:
    """A tokenizer's decoding side.

    silent: ids of special tokens, which have no text.
    byte_ids: ids of `<0x..>` tokens where the tokenizer falls back to bytes. Such a decoder judges a whole run of bytes
        at once: one invalid byte turns the run into one U+FFFD a byte, so nothing of a run is known before it ends.
    """

    tokenizer: Tokenizer
    silent: frozenset[int]
    byte_ids: frozenset[int]
    _lengths: dict[int, int] = field(default_factory=dict, compare=False)

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> Decoder:
        added = tokenizer.get_added_tokens_decoder()
        silent = frozenset(token for token, entry in added.items() if entry.special)
        falls_back = '"ByteFallback"' in json.dumps(json.loads(tokenizer.to_str())["decoder"])
        vocabulary = tokenizer.get_vocab(with_added_tokens=False) if falls_back else {}
        byte_ids = frozenset(token for content, token in vocabulary.items() if _BYTE_TOKEN.fullmatch(content))
        return cls(tokenizer, silent, byte_ids)

    def start(self) -> IncrementalDetokenizer:
        """A detokenizer for one text."""
        return IncrementalDetokenizer(self)

    def marked(self, marks: Collection[str]) -> Detokenizer:
        """A detokenizer for one text in which these control tokens are shown."""
        found = {token: mark for mark in marks if (token := self.tokenizer.token_to_id(mark)) in self.silent}
        return MarkedDetokenizer(self, found) if found else self.start()

    def text(self, ids: list[int]) -> str:
        text: str = self.tokenizer.decode(ids, skip_special_tokens=True)
        return text

    def length(self, ids: list[int]) -> int:
        """Characters of their text. Of a single id, which it mostly is, that is known from the second time on."""
        if len(ids) != 1:
            return len(self.text(ids))
        if ids[0] not in self._lengths:
            self._lengths[ids[0]] = len(self.text(ids))
        return self._lengths[ids[0]]

    def everything(self, ids: list[int]) -> str:
        """Control tokens included. Unlike `decode`, the batch method releases the interpreter lock."""
        (text,) = self.tokenizer.decode_batch([ids], skip_special_tokens=False)
        return str(text)

    def has_text(self, token: int) -> bool:
        """False for special tokens and for padding ids, of which decoders know nothing."""
        return token not in self.silent and self.tokenizer.id_to_token(token) is not None


class MarkedDetokenizer:
    """As `IncrementalDetokenizer`, but that these special tokens do have a text, and divide that around them.

    marks: ids and their texts.
    """

    def __init__(self, decoder: Decoder, marks: Mapping[int, str]) -> None:
        self._decoder = decoder
        self._marks = marks
        self._between = decoder.start()

    def push(self, token: int) -> str:
        mark = self._marks.get(token)
        if mark is None:
            return self._between.push(token)
        before, self._between = self._between.flush(), self._decoder.start()
        return before + mark

    def flush(self) -> str:
        return self._between.flush()


class IncrementalDetokenizer:
    """Decodes a short window: the tokens of the last piece as context, then those whose text is not settled yet.

    The context keeps what decoders do between tokens (spaces of words, the space they strip from the very first one).
    """

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self._window: list[int] = []
        self._settled = 0  # leading tokens of the window whose text is out completely
        self._shown = 0  # characters of the window's text that are out

    def push(self, token: int) -> str:
        if not self._decoder.has_text(token):
            return ""
        self._window.append(token)
        if token in self._decoder.byte_ids:
            return ""
        text = self._decoder.text(self._window)
        if text.endswith(REPLACEMENT):  # an incomplete code point reads as exactly one of these, at the end
            return self._take(text[:-1])
        piece = self._take(text)
        if piece:
            self._slide()
        return piece

    def flush(self) -> str:
        piece = self._take(self._decoder.text(self._window))
        self._slide()
        return piece

    def _take(self, text: str) -> str:
        piece = text[self._shown :]
        self._shown = max(self._shown, len(text))
        return piece

    def _slide(self) -> None:
        self._window = self._window[self._settled :]
        self._settled = len(self._window)
        self._shown = self._decoder.length(self._window)
