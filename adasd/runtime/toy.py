"""A seeded n-gram model: a real `CausalRuntime`, exact and instant, for tests and for running services without torch.

Logits at a position are a pure function of (seed, the last `order` tokens), so twins (same seed) agree in every bit,
strangers (another seed) agree by chance only, and `mix` gives every pair in between.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from adasd.core.draws import splitmix64
from adasd.core.errors import InvalidRequest, SessionNotFound
from adasd.core.messages import ModelInfo
from adasd.core.types import FloatArray
from adasd.runtime.base import Segment
from adasd.runtime.fingerprint import text_fingerprint, vocabulary_fingerprint
from adasd.runtime.segments import check_batch
from adasd.runtime.toy_tokenizer import END_ID, toy_tokenizer, toy_tokens, write_toy_files

PREFIX = "toy"
SMALLEST_VOCABULARY = 3
MEMOISED_FLOATS = 2**22


@dataclass(frozen=True, slots=True)
class ToySpec:
    """Everything about one toy model; written `toy:seed=1,vocab=32,mix=0.3,stranger=2`. Validated on construction.

    vocab: ids of the model; token 0 ends the text. order: tokens the logits depend on.
    sharpness: scale of the logits; 0 makes every row flat, 1 gives the likeliest token about a fifth.
    eos_bias: added to the end's logit; -inf never ends.
    mix, stranger: logits = (1 - mix) * logits(seed) + mix * logits(stranger).
    context: positions. delay_ms: sleep per forward, to stand for a slow model.
    nan_after: fault injection for tests: logits are NaN at absolute position nan_after and every later one.
    """

    seed: int = 0
    vocab: int = 257
    order: int = 2
    sharpness: float = 1.0
    eos_bias: float = 0.0
    mix: float = 0.0
    stranger: int | None = None
    context: int = 512
    delay_ms: float = 0.0
    nan_after: int | None = None

    def __post_init__(self) -> None:
        for name, low, high in _RANGES:
            value = getattr(self, name)
            if value is not None and not low <= value <= high:
                raise InvalidRequest(f"{name} of a toy model must be within [{low:g}, {high:g}], got {value}", name)
        if self.mix > 0 and self.stranger is None:
            raise InvalidRequest("mix of a toy model needs the seed of a stranger", "stranger")

    @classmethod
    def parse(cls, text: str) -> ToySpec:
        """The spec of `toy`, `toy:` or `toy:key=value,...`. Unknown keys and malformed values are refused by name."""
        prefix, _, rest = text.partition(":")
        if prefix != PREFIX:
            raise InvalidRequest(f"a toy model is written {PREFIX}:key=value,..., got {text!r}", "model")
        return cls(**dict(_parse_entry(entry) for entry in rest.split(",") if entry.strip()))

    @property
    def weights(self) -> str:
        """The part of the spec that the logits depend on."""
        return f"{self.seed} {self.vocab} {self.order} {self.sharpness} {self.eos_bias} {self.mix} {self.stranger}"


_RANGES: tuple[tuple[str, float, float], ...] = (
    ("seed", 0, 2**63 - 1),
    ("vocab", SMALLEST_VOCABULARY, 2**20),
    ("order", 0, 64),
    ("sharpness", 0, 1e3),
    ("eos_bias", -np.inf, 1e3),
    ("mix", 0, 1),
    ("stranger", 0, 2**63 - 1),
    ("context", 1, 2**24),
    ("delay_ms", 0, 6e4),
    ("nan_after", 0, 2**24),
)
_REAL = {"sharpness", "eos_bias", "mix", "delay_ms"}


def is_toy(spec: str) -> bool:
    """Whether a model's spec names a toy, not a folder."""
    return spec.partition(":")[0] == PREFIX


def _parse_entry(entry: str) -> tuple[str, Any]:
    key, _, value = (part.strip() for part in entry.partition("="))
    known = [field.name for field in fields(ToySpec)]
    if key not in known:
        raise InvalidRequest(f"unknown key {key!r} of a toy model; known: {', '.join(known)}", key)
    kind = float if key in _REAL else int
    try:
        return key, kind(value)
    except ValueError:
        raise InvalidRequest(f"{key} of a toy model must be {kind.__name__}, got {value!r}", key) from None


class ToyRuntime:
    """`CausalRuntime[FloatArray]` of one `ToySpec`. Logits are float64 [rows, vocab]."""

    def __init__(self, spec: ToySpec) -> None:
        self._spec = spec
        self._held: dict[bytes, list[int]] = {}
        self._logits = lru_cache(maxsize=max(256, MEMOISED_FLOATS // spec.vocab))(self._compute)
        tokenizer = toy_tokenizer(spec.vocab)
        self._info = ModelInfo(
            name=f"toy-{spec.seed}",
            vocabulary=spec.vocab,
            context_length=spec.context,
            eos_ids=(END_ID,),
            vocabulary_fingerprint=vocabulary_fingerprint(tokenizer, (END_ID,)),
            weights_fingerprint=text_fingerprint(f"toy {spec.weights}"),
            support=len(toy_tokens(spec.vocab)),
        )

    def info(self) -> ModelInfo:
        return self._info

    def forward(self, batch: Sequence[Segment]) -> Sequence[FloatArray]:
        check_batch(batch, {session: len(ids) for session, ids in self._held.items()}, self._info)
        time.sleep(self._spec.delay_ms / 1000)
        return [self._read(segment) for segment in batch]

    @property
    def allocated(self) -> int:
        return sum(map(len, self._held.values()))

    def reserve(self, session: bytes, length: int) -> None:
        """Lists need no room made."""

    def fork(self, source: bytes, session: bytes, length: int) -> None:
        held = self._held.get(source, [])
        if len(held) < length:
            raise SessionNotFound(f"{len(held)} positions are held, not {length}")
        self._held[session] = held[:length]

    def rename(self, session: bytes, name: bytes) -> None:
        if session not in self._held:
            raise SessionNotFound("nothing is held of this session")
        self._held[name] = self._held.pop(session)

    def release(self, session: bytes) -> None:
        self._held.pop(session, None)

    def _read(self, segment: Segment) -> FloatArray:
        ids = [*self._held.get(segment.session, ())[: segment.base], *segment.ids]
        self._held[segment.session] = ids
        rows = [self._row(ids, position) for position in range(len(ids) - segment.rows, len(ids))]
        return np.array(rows, dtype=np.float64).reshape(segment.rows, self._spec.vocab)

    def _row(self, ids: list[int], position: int) -> FloatArray:
        if self._spec.nan_after is not None and position >= self._spec.nan_after:
            return np.full(self._spec.vocab, np.nan)
        return self._logits(tuple(ids[max(0, position + 1 - self._spec.order) : position + 1]))

    def _compute(self, tail: tuple[int, ...]) -> FloatArray:
        spec = self._spec
        scores = _scores(spec.seed, tail, spec.vocab)
        if spec.stranger is not None:
            scores = (1 - spec.mix) * scores + spec.mix * _scores(spec.stranger, tail, spec.vocab)
        logits = spec.sharpness * scores
        logits[END_ID] += spec.eos_bias
        logits[self._info.support :] = -np.inf  # padding: no token has these ids
        return logits


def _scores(seed: int, tail: tuple[int, ...], vocabulary: int) -> FloatArray:
    """One logistic variate per token, [vocabulary], from a hash of the tail."""
    packed = struct.pack(f"<Q{len(tail)}I", seed, *tail)
    key = int.from_bytes(blake2b(packed, digest_size=8).digest(), "little")
    bits = splitmix64(key, np.arange(vocabulary)) >> np.uint64(11)
    uniform = np.minimum((bits.astype(np.float64) + 0.5) / 2**53, 1.0 - 2**-53)
    return np.log(uniform) - np.log1p(-uniform)


def write_toy_model(directory: Path, spec: ToySpec) -> None:
    """Write what a gateway needs to serve this toy model: its tokenizer and chat template."""
    write_toy_files(directory, spec.vocab, spec.context)
