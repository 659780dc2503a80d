"""What identifies a vocabulary and a set of weights; computed the same way for every runtime."""

from __future__ import annotations

import json
import struct
from collections.abc import Collection, Iterator
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING

from adasd.grammars.engine import LIBRARY

if TYPE_CHECKING:
    from tokenizers import Tokenizer

FINGERPRINT_BYTES = 16
SAMPLED_BYTES = 64 * 1024
"""Read of every tensor: enough to tell two trainings apart, and seconds instead of minutes for a large model."""


def vocabulary_fingerprint(tokenizer: Tokenizer, eos_ids: Collection[int]) -> str:
    """blake2b, hex, over (id, token string) in id order, special ids, EOS ids, and what reads grammars over them.

    Ids without a token (rows that only pad the model's matrices) do not count: sizes of one family stay compatible.
    """
    tokens = sorted((index, token) for token, index in tokenizer.get_vocab(with_added_tokens=True).items())
    special = sorted(index for index, token in tokenizer.get_added_tokens_decoder().items() if token.special)
    digest = blake2b(digest_size=FINGERPRINT_BYTES)
    digest.update(json.dumps([tokens, special, sorted(eos_ids), LIBRARY], ensure_ascii=True).encode())
    return digest.hexdigest()


def text_fingerprint(text: str) -> str:
    """blake2b, hex, of a text that says everything about some weights."""
    return blake2b(text.encode(), digest_size=FINGERPRINT_BYTES).hexdigest()


def weights_fingerprint(folder: Path) -> str:
    """blake2b, hex, over the safetensors files of a model folder: names, headers, and the start of every tensor.

    Headers name each tensor with its type and shape. Raises FileNotFoundError for a folder without weights.
    """
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise FileNotFoundError(f"no *.safetensors in {folder}")
    digest = blake2b(digest_size=FINGERPRINT_BYTES)
    for file in files:
        digest.update(file.name.encode())
        for part in _sampled(file):
            digest.update(part)
    return digest.hexdigest()


def _sampled(file: Path) -> Iterator[bytes]:
    with file.open("rb") as stream:
        (length,) = struct.unpack("<Q", stream.read(8))
        header = stream.read(length)
        yield header
        start = stream.tell()
        tensors = json.loads(header)
        tensors.pop("__metadata__", None)
        for begin, end in sorted(tensor["data_offsets"] for tensor in tensors.values()):
            stream.seek(start + begin)
            yield stream.read(min(end - begin, SAMPLED_BYTES))
