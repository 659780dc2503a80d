"""A real tokenizer for the toy model: byte-level, one token a byte, no merges."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokenizers import Tokenizer

END = "<|end|>"
END_ID = 0
UNKNOWN = "?"
BYTES = 256
FREQUENT = " etaoinshrdlucmfwypvbgkjqxz.,'\n-\"!:;()0123456789TAISHWBMCENDLOFPRGYUVJKQXZ"
"""Characters of small vocabularies, most frequent in English first."""

CHAT_TEMPLATE = (
    "{% if tools %}{% for tool in tools %}{{ 'tool: ' + tool['function'] | tojson + '\n' }}{% endfor %}{% endif %}"
    "{% for message in messages %}{{ message['role'] + ': ' + message['content'] | default('') }}"
    "{% for call in message['tool_calls'] %}{{ '<tool_call>' + call['function'] | tojson + '</tool_call>' }}"
    "{% endfor %}{{ '\n' }}{% endfor %}{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
)
"""Tools and calls in the way of Hermes."""


def toy_tokens(vocabulary: int) -> list[str]:
    """Token strings in id order, at most `vocabulary`: the end of text, then bytes.

    With room for all 256 bytes they come in byte order, and the ids after them stay without a token (padding).
    With less, `?`, which also stands for whatever is missing, is followed by the most frequent characters of English.
    """
    alphabet = _byte_characters()
    if vocabulary > BYTES:
        return [END, *alphabet]
    frequent = [alphabet[ord(character)] for character in UNKNOWN + FREQUENT]
    others = [character for character in alphabet if character not in frequent]
    return [END, *frequent, *others][:vocabulary]


def toy_tokenizer(vocabulary: int) -> Tokenizer:
    """The tokenizer of a toy model with that many ids."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    tokens = toy_tokens(vocabulary)
    ids = {token: index for index, token in enumerate(tokens)}
    unknown = UNKNOWN if vocabulary <= BYTES else None
    tokenizer = Tokenizer(models.BPE(vocab=ids, merges=[], unk_token=unknown))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(END, special=True, normalized=False)])
    return tokenizer


def write_toy_files(directory: Path, vocabulary: int, context_length: int) -> None:
    """Write tokenizer.json and tokenizer_config.json (with a chat template), as a model folder has them."""
    directory.mkdir(parents=True, exist_ok=True)
    toy_tokenizer(vocabulary).save(str(directory / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": END,
        "model_max_length": context_length,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")


def _byte_characters() -> list[str]:
    """The printable character that byte-level tokenizers write for each byte 0..255 (GPT-2's table)."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(BYTES) if byte not in printable]
    table = {byte: chr(byte) for byte in printable} | {byte: chr(BYTES + i) for i, byte in enumerate(others)}
    return [table[byte] for byte in range(BYTES)]
