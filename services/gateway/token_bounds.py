"""How many tokens a text is at least, without tokenising it: a text of megabytes takes seconds and a gigabyte."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer, pre_tokenizers

NEVER = bytes((0xC0, 0xC1, *range(0xF5, 0x100)))
"""Bytes that no UTF-8 text holds."""


@dataclass(frozen=True, slots=True)
class TokenBound:
    """longest: bytes of a text that one token stands for, at most; None if it may be any number of them.

    encoding: of the bytes that count. missing: bytes that the vocabulary leaves out, and the tokenizer with it.
    """

    longest: int | None
    encoding: str = "utf-8"
    missing: bytes = b""

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> TokenBound:
        """Something is known of tokenizers that work on bytes, as those of GPT-2, Llama 3 and Qwen; others may strip
        spaces, or write one token for whatever they do not know.
        """
        description = json.loads(tokenizer.to_str())
        normalizer, added = description["normalizer"], description["added_tokens"]
        if not _bytewise(description) or any(entry["lstrip"] or entry["rstrip"] for entry in added):
            return cls(None)
        longest, missing = max(map(len, tokenizer.get_vocab(with_added_tokens=True))), _missing(description["model"])
        if normalizer is None:
            return cls(longest, missing=missing)
        if normalizer["type"] == "NFC" and not set(missing) - set(NEVER):  # it joins characters, but never two of ASCII
            return cls(longest, "ascii")
        return cls(None)

    def least(self, text: str) -> int:
        """A number of tokens that the text has at least."""
        if self.longest is None:
            return 0
        return len(text.encode(self.encoding, "ignore").translate(None, self.missing)) // self.longest


def _bytewise(description: Mapping[str, Any]) -> bool:
    """Writes a character for each byte, and leaves out none but those that the vocabulary does not have."""
    model, first = description["model"], description["pre_tokenizer"] or {"type": "none"}
    steps = first.get("pretokenizers", [first])
    bytewise = any(step["type"] == "ByteLevel" for step in steps)
    return bytewise and all(map(_keeps, steps)) and bool(model["type"] == "BPE" and not model["fuse_unk"])


def _keeps(step: Mapping[str, Any]) -> bool:
    """Only writes the text otherwise, or cuts it into pieces."""
    return step["type"] in ("ByteLevel", "Digits") or (step["type"] == "Split" and step["behavior"] != "Removed")


def _missing(model: Mapping[str, Any]) -> bytes:
    """Bytes without a token of their own, where none stands for the unknown."""
    if model["unk_token"] is not None:
        return b""
    return bytes(byte for byte in range(256) if _ALPHABET[byte] not in model["vocab"])


def _alphabet() -> list[str]:
    """The character that stands for each byte: itself where it is printable, else the next one from 256 on."""
    characters = set(pre_tokenizers.ByteLevel.alphabet())
    others = iter(sorted(characters - set(map(chr, range(256)))))
    return [chr(byte) if chr(byte) in characters else next(others) for byte in range(256)]


_ALPHABET = _alphabet()
