"""What a request's sampling fields mean, written once more and plainly: the exact distribution of a toy target's texts.

Nothing of `adasd.core` is used but the toy's raw logits, so a fault there is none here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from adasd.core.types import FloatArray
from adasd.runtime.base import Segment
from adasd.runtime.toy import ToyRuntime, ToySpec

EOS = 0


@dataclass(frozen=True)
class Reference:
    """A target and the fields of a request to it."""

    target: ToyRuntime
    fields: Mapping[str, Any]

    @classmethod
    def of(cls, spec: str, fields: Mapping[str, Any]) -> Reference:
        return cls(ToyRuntime(ToySpec.parse(spec)), fields)

    def texts(self, prompt: Sequence[int], tokens: int) -> dict[tuple[int, ...], float]:
        """Every text of so many tokens, or up to its EOS, and its probability."""
        found: dict[tuple[int, ...], float] = {}
        growing: dict[tuple[int, ...], float] = {(): 1.0}
        for _ in range(tokens):
            longer = {
                (*text, token): mass * share
                for text, mass in growing.items()
                for token, share in enumerate(self.next(prompt, text))
                if share > 0
            }
            found |= {text: mass for text, mass in longer.items() if text[-1] == EOS}
            growing = {text: mass for text, mass in longer.items() if text[-1] != EOS}
        return found | growing

    def next(self, prompt: Sequence[int], text: Sequence[int]) -> FloatArray:
        """The distribution of the token after prompt and text, [vocabulary]."""
        (rows,) = self.target.forward([Segment(b"0" * 16, 0, [*prompt, *text], 1)])
        return self._warped(self._processed(rows[0].astype(np.float64), prompt, text))

    def _processed(self, logits: FloatArray, prompt: Sequence[int], text: Sequence[int]) -> FloatArray:
        ask, logits = self.fields, logits.copy()
        for token, bias in ask.get("logit_bias", {}).items():
            logits[int(token)] += bias
        for token in {*prompt, *text}:
            penalty = ask.get("repetition_penalty", 1.0)
            logits[token] = logits[token] / penalty if logits[token] > 0 else logits[token] * penalty
        for token in set(text):
            logits[token] -= ask.get("frequency_penalty", 0.0) * list(text).count(token)
            logits[token] -= ask.get("presence_penalty", 0.0)
        if len(text) < ask.get("min_tokens", 0):
            logits[EOS] = -np.inf
        return logits

    def _warped(self, logits: FloatArray) -> FloatArray:
        """Temperature, then top_k, top_p, min_p, each on what the one before has left."""
        ask = self.fields
        p = np.exp((logits - logits.max()) / ask.get("temperature", 1.0))
        likeliest = np.argsort(-p)
        p[likeliest[ask.get("top_k", len(p)) :]] = 0.0
        p /= p.sum()
        mass_before = np.cumsum(p[likeliest]) - p[likeliest]
        p[likeliest[mass_before >= ask.get("top_p", 1.0)]] = 0.0
        p /= p.sum()
        p[p < ask.get("min_p", 0.0) * p.max()] = 0.0
        warped: FloatArray = p / p.sum()
        return warped
