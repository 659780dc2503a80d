"""Whether one model behind two runtimes is one: the logits' difference, and whether seeded texts are the same."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from adasd.core.host import HostKernels, HostTarget
from adasd.core.margins import margin
from adasd.core.messages import ModelInfo, VerifyRequest
from adasd.core.stopping import AdaSDStopping
from adasd.core.types import FloatArray, SamplingParams
from adasd.core.verdicts import Verdict
from adasd.runtime.base import CausalRuntime, Segment
from adasd.runtime.host_rows import host_rows
from adasd.runtime.local import LocalPair
from adasd.runtime.replica import Replica

RULES = (("exact", 0.0), ("exact", 0.8), ("adasd", 0.8), ("coupled", 0.8))
"""Acceptance rule and temperature, of one text after the other."""
PROBE = b"comparison"


class Witness:
    """A replica that keeps what it was asked and what it answered."""

    def __init__(self, replica: Replica[Any]) -> None:
        self._replica = replica
        self.rounds: list[tuple[VerifyRequest, Verdict]] = []

    def info(self) -> ModelInfo:
        return self._replica.info()

    def verify(self, request: VerifyRequest) -> Verdict:
        verdict = self._replica.verify(request)
        self.rounds.append((request, verdict))
        return verdict

    def release(self, session: bytes) -> None:
        self._replica.release(session)


@dataclass(frozen=True, slots=True)
class Divergence:
    """Where two texts part. decided: by what; margin: how closely, in logits, scores or probability."""

    round_number: int
    decided: str
    margin: float


@dataclass(frozen=True, slots=True)
class Compared:
    """One text of both. rounds: the shorter text's.

    logit_error: the largest, over the prompt and the text. largest: logit, of the first runtime.
    """

    acceptance: str
    temperature: float
    rounds: int
    tokens: int
    logit_error: float
    largest: float
    divergence: Divergence | None


class Comparison:
    """Two runtimes of one model, and a draft that both judge."""

    def __init__(self, draft: Replica[Any], left: tuple[Any, Any], right: tuple[Any, Any]) -> None:
        self._draft, self._runtimes = draft, (left[0], right[0])
        self._replicas = (Replica(*left), Replica(*right))

    def texts(self, prompts: Sequence[Sequence[int]], rounds: int) -> Iterator[Compared]:
        """A seeded text after every prompt, each of so many rounds at most, by every rule in turn."""
        for number, prompt in enumerate(prompts):
            acceptance, temperature = RULES[number % len(RULES)]
            yield self._text(prompt, acceptance, SamplingParams(temperature, seed=number, ignore_eos=True), rounds)

    def _text(self, prompt: Sequence[int], acceptance: str, sampling: SamplingParams, rounds: int) -> Compared:
        left, right = (self._rounds(replica, prompt, acceptance, sampling, rounds) for replica in self._replicas)
        tokens = [token for _, verdict in left for token in verdict.tokens]
        one, other = (logits_of(runtime, [*prompt, *tokens]) for runtime in self._runtimes)
        return Compared(
            acceptance,
            sampling.temperature,
            min(len(left), len(right)),
            len(tokens),
            float(np.abs(one - other).max()),
            float(np.abs(one).max()),
            self._divergence(left, right),
        )

    def _rounds(
        self, replica: Replica[Any], prompt: Sequence[int], acceptance: str, sampling: SamplingParams, rounds: int
    ) -> list[tuple[VerifyRequest, Verdict]]:
        witness = Witness(replica)
        text = LocalPair(self._draft, witness).generate(prompt, sampling, AdaSDStopping(), acceptance, 1 << 30)
        for _ in islice(text, rounds):
            pass
        return witness.rounds

    def _divergence(
        self, left: Sequence[tuple[VerifyRequest, Verdict]], right: Sequence[tuple[VerifyRequest, Verdict]]
    ) -> Divergence | None:
        for number, ((request, one), (_, other)) in enumerate(zip(left, right, strict=False)):
            if (one.accepted, one.tokens) != (other.accepted, other.tokens):
                found = margin(request, self._rows(request), one, other)
                assert found is not None
                return Divergence(number, *found)
        return None

    def _rows(self, request: VerifyRequest) -> HostTarget:
        """What the first of the two sees of a request's block."""
        ids, rows = [*request.context.ids, *request.draft.ids], len(request.draft) + 1
        target: Any = HostKernels().target(logits_of(self._runtimes[0], ids)[-rows:], request.sampling)
        return target  # type: ignore[no-any-return]


def logits_of(runtime: CausalRuntime[Any], ids: Sequence[int]) -> FloatArray:
    """Of all positions, read at once, [positions, vocabulary]."""
    (logits,) = runtime.forward([Segment(PROBE, 0, list(ids), len(ids))])
    runtime.release(PROBE)
    return host_rows(runtime, logits)
