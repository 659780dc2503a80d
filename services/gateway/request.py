"""One generation as the decoding loop needs it: parsed, checked and tokenised; nothing in it can be wrong any more."""

from __future__ import annotations

from dataclasses import dataclass

from adasd.core.copying import copying_for
from adasd.core.decoding import Controller, OneByOne, Runs
from adasd.core.marginal import Marginal
from adasd.core.messages import NextRound
from adasd.core.stopping import Off, StoppingRule
from adasd.core.types import SamplingParams
from adasd.core.verification import verification

SESSION_BYTES = 16


@dataclass(frozen=True, slots=True)
class Calls:
    """What calls the text may hold. form: name of a `CallFormat`. names: of the functions. parallel: more than one."""

    form: str
    names: tuple[str, ...]
    parallel: bool = True


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """session: 16 random bytes. prompt: token ids, fewer than `context_length`.

    acceptance: name of an acceptance method. max_tokens: at most the room that the prompt leaves.
    eos_ids: that end the text; none where EOS is ignored. stop: strings that end it.
    seeded: the client chose the seed, so the text must not depend on chance. top_logprobs: as of `VerifyRequest`.
    calls: None where the text is only text. copying: whether candidates may come from the text itself.
    """

    session: bytes
    prompt: tuple[int, ...]
    sampling: SamplingParams
    stopping: StoppingRule
    acceptance: str
    max_tokens: int
    context_length: int
    eos_ids: frozenset[int]
    stop: tuple[str, ...]
    seeded: bool
    top_logprobs: int | None = None
    calls: Calls | None = None
    copying: bool = False

    @property
    def limit(self) -> int:
        """Committed length at which the text ends."""
        return min(len(self.prompt) + self.max_tokens, self.context_length)

    def next_round(self, base: int, rounds: int = 1) -> NextRound:
        """What can be said of the round after those, so many, that begin at `base`, whatever comes of them."""
        if base + rounds >= self.limit:
            return "none"
        return "plain" if isinstance(self.stopping, Off) else "unknown"

    @property
    def in_parts(self) -> bool:
        """Whether long blocks may be read in two parts: a rule that weighs costs has weighed them as read in one."""
        return not isinstance(self.stopping, Marginal)

    def controller(self, runs: Runs | None = None) -> Controller:
        """How far each round may draft. runs: as of `Controller`."""
        copying = copying_for(self.stopping, self.eos_ids, self.copying)
        return Controller(self.stopping, verification(self.acceptance), self.limit, copying, runs or OneByOne())
