"""What single tokens are written as: text and bytes, as log-probabilities name them."""

from __future__ import annotations

import json

from services.gateway.detokenizer import REPLACEMENT, Decoder

_BYTES = 256


class Spelling:
    """Of one tokenizer's ids. The bytes of a text's tokens, joined, are the bytes of the text.

    Byte-level tokens are their bytes wherever they stand. Others depend on the token before (a space of their own,
    marks of a word that goes on), so they are read behind an anchor, some token that is plain text.
    """

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self._added = decoder.tokenizer.get_added_tokens_decoder()
        self._table = _byte_table() if _byte_level(decoder) else None
        self._anchor = [] if self._table else _anchor(decoder)

    def of(self, token: int, first: bool = False) -> tuple[str, list[int] | None]:
        """Text and bytes. Control tokens have their name and no bytes; an id without a token has neither.

        first: the token begins a text. Bytes that are no text by themselves are written `bytes:\\xf0\\x9f`.
        """
        content = self._decoder.tokenizer.id_to_token(token)
        if content is None:
            return "", None
        if token in self._decoder.silent:
            return content, None
        raw = content.encode() if token in self._added else self._bytes(token, content, first)
        return _readable(raw), list(raw)

    def _bytes(self, token: int, content: str, first: bool) -> bytes:
        if self._table is not None:
            return bytes(self._table[character] for character in content if character in self._table)
        if token in self._decoder.byte_ids:
            return bytes([int(content[3:5], 16)])
        anchor = [] if first else self._anchor
        return self._decoder.text([*anchor, token])[len(self._decoder.text(anchor)) :].encode()


def _readable(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


def _byte_level(decoder: Decoder) -> bool:
    return '"ByteLevel"' in json.dumps(json.loads(decoder.tokenizer.to_str())["decoder"])


def _anchor(decoder: Decoder) -> list[int]:
    """The first token that is text by itself."""
    for token in range(decoder.tokenizer.get_vocab_size(with_added_tokens=False)):
        plain = decoder.has_text(token) and token not in decoder.byte_ids
        if plain and (text := decoder.text([token]).strip()) and REPLACEMENT not in text:
            return [token]
    return []


def _byte_table() -> dict[str, int]:
    """The byte behind each character of a byte-level vocabulary (GPT-2's table)."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = (byte for byte in range(_BYTES) if byte not in printable)
    return {chr(byte): byte for byte in printable} | {chr(_BYTES + i): byte for i, byte in enumerate(others)}
