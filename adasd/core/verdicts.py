"""What a target says of a block: the verdict, and what it rests on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Emission = Literal["recovered", "bonus", "none"]
"""How the last token of a verdict came about: sampled after a rejection, after a full acceptance, or cut away."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """What the verifier found for one judged candidate.

    distance: JS distance of the two rows. exact: outcome of the exact test on the same draw.
    accepted: the decision. loss: ln(q/p) in nats if accepted by relaxation only, else 0.
    floored: the rule would have accepted, but the warped target gives the candidate probability 0.
    """

    distance: float
    exact: bool
    accepted: bool
    loss: float = 0.0
    floored: bool = False

    @property
    def relaxed(self) -> bool:
        """Accepted only because of the relaxation."""
        return self.accepted and not self.exact


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """What the target says of one token: natural logarithms of the softmax of its raw logits, at temperature 1.

    logprob: of the token itself. top_ids, top: of the likeliest ids, most likely first, equals by ascending id.
    """

    logprob: float
    top_ids: tuple[int, ...] = ()
    top: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verifier's answer to one block: tokens = accepted candidates, then the emitted token unless cut away.

    Or to a run, a block or none and then rounds without candidates, one after another: all their tokens.

    judgements: one per judged candidate, i.e. up to and including the first rejection.
    logprobs: one per token; empty if nobody asked. emission: of a run, how the last of all came about.
    """

    tokens: tuple[int, ...]
    accepted: int
    emission: Emission
    judgements: tuple[Judgement, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()

    @property
    def rounds(self) -> int:
        """One, but for a run."""
        return max(1, len(self.tokens) - self.accepted)

    def then(self, further: Verdict) -> Verdict:
        """This and the round after it, which had no candidates."""
        tokens, logprobs = self.tokens + further.tokens, self.logprobs + further.logprobs
        return Verdict(tokens, self.accepted, further.emission, self.judgements, logprobs)

    def cut(self, length: int) -> Verdict:
        """The verdict if the block, or the run, ended after `length` of its tokens."""
        if length >= len(self.tokens):
            return self
        accepted = min(self.accepted, length)
        if length > accepted:
            return Verdict(
                self.tokens[:length], accepted, self._emitted(length), self.judgements, self.logprobs[:length]
            )
        return Verdict(self.tokens[:length], accepted, "none", self.judgements[:accepted], self.logprobs[:length])

    def _emitted(self, length: int) -> Emission:
        """How the last of so many tokens came about, more than were accepted."""
        rejected = bool(self.judgements) and not self.judgements[-1].accepted
        return "recovered" if rejected and length == self.accepted + 1 else "bonus"
