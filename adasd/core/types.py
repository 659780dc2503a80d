"""The values that travel through the decoding loop. Words as in docs/architecture: candidate, block, round, base."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from adasd.core.errors import InvalidRequest
from adasd.core.grammar import Grammar
from adasd.core.worth import Worth

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

FinishReason = Literal["stop", "length", "cancelled"]
"""Why no more tokens are generated: EOS or a stop string, a limit, or nobody wants them."""

Decision = Literal["off", "probe", "draft", "copy"]
"""Of a plan: no candidates, some to find out about them, some because they pay or the rule does not ask, some that need
no drafter."""


MAX_BIASES = 1024
MAX_TOKEN_ID = 2**32 - 1
MAX_TOP_LOGPROBS = 20


def _within(name: str, value: float, low: float, high: float) -> None:
    if not (math.isfinite(value) and low <= value <= high):
        raise InvalidRequest(f"{name} must be within [{low:g}, {high:g}], got {value}", name)


def _ascending(name: str, ids: Sequence[int]) -> None:
    if not all(low < high for low, high in pairwise([-1, *ids, MAX_TOKEN_ID + 1])):
        raise InvalidRequest(f"the ids of {name} must ascend strictly within [0, 2^32)", name)


@dataclass(frozen=True, slots=True)
class Processing:
    """What is done to raw logits before they are warped, in the order of the fields. Validated on construction.

    logit_bias: (id, bias) by ascending id; the bias is added to the logit, nothing more. -100 all but bans.
    repetition_penalty: for ids of prompt and generated text: positive logits are divided by it, others multiplied; 1 is
    off. frequency_penalty, presence_penalty: taken from logits of generated ids, per occurrence and once; 0 is off.
    min_tokens: until so many tokens are generated `eos_ids` are banned.
    grammar: that the generated text follows; what it does not allow next is banned, `eos_ids` but where it may end.
    """

    logit_bias: tuple[tuple[int, float], ...] = ()
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    min_tokens: int = 0
    eos_ids: tuple[int, ...] = ()
    grammar: Grammar | None = None

    def __post_init__(self) -> None:
        _within("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        _within("presence_penalty", self.presence_penalty, -2.0, 2.0)
        if not 0.0 < self.repetition_penalty < math.inf:
            raise InvalidRequest(
                f"repetition_penalty must be above 0 and finite, got {self.repetition_penalty}", "repetition_penalty"
            )
        if not 0 <= self.min_tokens <= MAX_TOKEN_ID:
            raise InvalidRequest(f"min_tokens must not be negative, got {self.min_tokens}", "min_tokens")
        _ascending("eos_ids", sorted(self.eos_ids))
        if self.grammar is not None and self.min_tokens:
            raise InvalidRequest("a text with a grammar ends where that does: min_tokens must be 0", "min_tokens")
        self._check_biases()

    def _check_biases(self) -> None:
        if len(self.logit_bias) > MAX_BIASES:
            raise InvalidRequest(f"logit_bias has at most {MAX_BIASES} entries", "logit_bias")
        _ascending("logit_bias", [token for token, _ in self.logit_bias])
        for _, bias in self.logit_bias:
            _within("logit_bias", bias, -100.0, 100.0)

    @property
    def penalises(self) -> bool:
        """Whether logits depend on the text before them."""
        return self.repetition_penalty != 1.0 or self.frequency_penalty != 0.0 or self.presence_penalty != 0.0


PLAIN = Processing()
"""Logits stay as they are."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the target's logits become the distribution that is sampled from. Validated on construction.

    temperature: 0 is greedy. top_k: 0 is off. top_p: 1 is off. min_p: 0 is off; applied in this order.
    seed, choice: 64-bit seed of the request and index of the choice; together they key every draw.
    processing: comes before all of this. ignore_eos: EOS is a token like any other, drafted past too.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    choice: int = 0
    processing: Processing = PLAIN
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        _within("temperature", self.temperature, 0.0, 1e6)
        _within("top_p", self.top_p, 0.0, 1.0)
        _within("min_p", self.min_p, 0.0, 1.0)
        if self.top_p == 0.0:
            raise InvalidRequest("top_p must be above 0", "top_p")
        if self.top_k < 0:
            raise InvalidRequest(f"top_k must be 0 (off) or positive, got {self.top_k}", "top_k")
        if not 0 <= self.seed < 2**64:
            raise InvalidRequest(f"seed must be within [0, 2^64), got {self.seed}", "seed")
        if not 0 <= self.choice < 2**32:
            raise InvalidRequest(f"choice must be within [0, 2^32), got {self.choice}", "n")

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0


@dataclass(frozen=True, slots=True)
class Foreseen:
    """How a text went on where its end stood before. ids: at least one. matched: tokens of the end that stood there."""

    ids: tuple[int, ...]
    matched: int


@dataclass(frozen=True, slots=True)
class DraftPlan:
    """How far the drafter may go in one round.

    max_candidates: upper bound on the block; 0 drafts nothing.
    entropy_threshold: bits; drafting stops after the candidate whose entropy exceeds it (AdaSD, T_G).
    coupled: candidates are drawn with the Gumbel noise that the target uses too (acceptance rule `coupled`).
    worth: what candidates earn and cost, for a rule that weighs it (`marginal`); None takes what comes.
    foreseen: what the text foresees of itself, where that is asked; the drafter is not told.
    copies: the candidates are the first `max_candidates` ids foreseen, and no drafter is asked.
    rounds: as of `VerifyRequest`; nobody plans again in between.
    """

    max_candidates: int
    entropy_threshold: float = math.inf
    coupled: bool = False
    worth: Worth | None = None
    foreseen: Foreseen | None = None
    copies: bool = False
    rounds: int = 1

    @property
    def decision(self) -> Decision:
        if self.max_candidates == 0:
            return "off"
        if self.copies:
            return "copy"
        return "probe" if self.worth is not None and self.worth.rate == 0.0 else "draft"

    def limited(self, room: int) -> DraftPlan:
        """The same plan with at most `room` candidates; with none if so few are not worth involving the drafter."""
        bound = max(0, min(self.max_candidates, room))
        worthwhile = bound == self.max_candidates or self.worth is None or self.worth.goes_on(0, 1.0, bound)
        return self if bound == self.max_candidates else replace(self, max_candidates=bound if worthwhile else 0)

    def goes_on(self, length: int, stands: float) -> bool:
        """Whether a block of `length` candidates, which all stand with probability `stands`, takes another step."""
        if length >= self.max_candidates:
            return False
        return length == 0 or self.worth is None or self.worth.goes_on(length, stands, self.max_candidates)

    def standing(self, entropy: float) -> float:
        """Expected acceptance of a candidate drawn from a row of this entropy (bits); 1 where nothing is weighed."""
        return 1.0 if self.worth is None else self.worth.accepted(entropy)

    def takes(self, length: int, stands: float) -> bool:
        """Whether candidate length + 1, with which the block stands with probability `stands`, belongs to it.

        Asked before the candidate is drawn, so that leaving it out is exact.
        """
        return self.worth is None or self.worth.takes(length, stands, self.max_candidates)

    def stops(self, entropy: float) -> bool:
        """Whether the candidate drawn from a row of this entropy (bits) is the last of its block."""
        return entropy > self.entropy_threshold


class Row(Protocol):
    """The exact distribution that a candidate was sampled from, as integer weights: q = weights / total.

    ids: int64 [k], strictly ascending. weights: int64 [k], non-negative, sum = total.
    """

    @property
    def total(self) -> int: ...
    @property
    def ids(self) -> IntArray: ...
    @property
    def weights(self) -> IntArray: ...
    def weight(self, token: int) -> int:
        """Weight of one token id; 0 outside the support."""
        ...


@dataclass(frozen=True, slots=True)
class Draft:
    """The candidates of one round. ids, entropies (bits) and rows have one entry a candidate.

    copied: from the text itself: they say nothing of the draft model.
    """

    ids: tuple[int, ...] = ()
    entropies: tuple[float, ...] = ()
    rows: tuple[Row, ...] = ()
    copied: bool = False

    def __len__(self) -> int:
        return len(self.ids)

    def cut(self, length: int) -> Draft:
        """The first `length` candidates."""
        return Draft(self.ids[:length], self.entropies[:length], self.rows[:length], self.copied)

    def after(self, length: int) -> Draft:
        """The others."""
        return Draft(self.ids[length:], self.entropies[length:], self.rows[length:], self.copied) if length else self


@dataclass(frozen=True, slots=True)
class Evidence:
    """All that an acceptance rule may know of one candidate x.

    p, q: warped target and draft probability of x. p_max: the largest target probability.
    distance: Jensen-Shannon distance (base 2) of both rows, in [0, 1].
    """

    p: float
    q: float
    p_max: float
    distance: float
