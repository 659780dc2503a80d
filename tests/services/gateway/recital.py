"""A toy model that recites: each chat gets the answer that was laid down for it, so that any text can be forced."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from tokenizers import AddedToken, Tokenizer

from adasd.core.host import HostKernels
from adasd.core.types import FloatArray
from adasd.grammars.engine import VocabularyGrammars
from adasd.runtime.replica import Replica
from adasd.runtime.toy import ToyRuntime, ToySpec
from adasd.runtime.toy_tokenizer import CHAT_TEMPLATE, END, END_ID, toy_tokenizer

HEADER = "".join(chr(1 + byte) for byte in b"assistant: ")
"""Ids, as characters, of what every template here ends with: one token a byte, after the end of text."""
BYTES = 257
SPEC = "toy:vocab=264,context=4000,sharpness=1"
CERTAIN = 60.0


class Recital(ToyRuntime):
    """Writes `answer`, then ends the text; anything else is as good as impossible."""

    def __init__(self, answer: Sequence[int], spec: str = SPEC) -> None:
        super().__init__(ToySpec.parse(spec))
        self.answer = list(answer)

    def _row(self, ids: list[int], position: int) -> FloatArray:
        packed = "".join(map(chr, ids[: position + 1]))
        told = len(packed) - packed.rindex(HEADER) - len(HEADER)
        row = np.zeros(self.info().vocabulary)
        row[self.answer[told] if told < len(self.answer) else END_ID] = CERTAIN
        return row


class Babbling(ToyRuntime):
    """As `ToyRuntime`, special tokens included."""

    def _row(self, ids: list[int], position: int) -> FloatArray:
        row = np.array(super()._row(ids, position))
        row[BYTES:] = 0.0
        return row


def reciting(answer: Sequence[int], specials: Sequence[str] = ()) -> Replica[FloatArray]:
    return performing(Recital(answer), specials)


def performing(runtime: ToyRuntime, specials: Sequence[str] = ()) -> Replica[FloatArray]:
    """Any toy model with the tokenizer of `write_recital`."""
    grammars = VocabularyGrammars(lambda: special_tokenizer(specials))
    return Replica(runtime, HostKernels(), None, grammars)


def special_tokenizer(specials: Sequence[str]) -> Tokenizer:
    """One token a byte, and these."""
    tokenizer = toy_tokenizer(BYTES)
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in specials])
    return tokenizer


def write_recital(folder: Path, template: str = CHAT_TEMPLATE, specials: Sequence[str] = ()) -> Path:
    """Files of a byte-level model with these special tokens after its bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    special_tokenizer(specials).save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": END, "chat_template": template}))
    return folder


def spelled(text: str, specials: Sequence[str] = ()) -> list[int]:
    """Ids of a text; specials in it are tokens of their own."""
    ids: list[int] = special_tokenizer(specials).encode(text, add_special_tokens=False).ids
    return ids
