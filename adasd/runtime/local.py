"""Both models in one process: the reference loop over two runtimes, without services, gRPC or Redis."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from adasd.core.adaptive import AcceptanceState
from adasd.core.context import Context
from adasd.core.copying import copying_for
from adasd.core.decoding import Boundary, Controller, Round, TokenBoundary, decode
from adasd.core.messages import ContextDelta, DraftRequest, ModelInfo, VerifyRequest
from adasd.core.stopping import StoppingRule
from adasd.core.types import Draft, DraftPlan, SamplingParams
from adasd.core.verdicts import Verdict
from adasd.core.verification import judging, verification
from adasd.runtime.replica import Replica


class Target(Protocol):
    """The part of a `Replica` that judges."""

    def info(self) -> ModelInfo: ...
    def verify(self, request: VerifyRequest) -> Verdict: ...
    def release(self, session: bytes) -> None: ...


@dataclass(frozen=True, slots=True)
class LocalPair:
    """A draft and a target model that decode together."""

    draft: Replica[Any]
    target: Target

    def generate(
        self,
        prompt: Sequence[int],
        sampling: SamplingParams,
        stopping: StoppingRule,
        acceptance: str,
        max_tokens: int,
        boundary: Boundary | None = None,
        top_logprobs: int | None = None,
        copying: bool = False,
    ) -> Iterator[Round]:
        """Rounds until EOS, `max_tokens` or the end of the context (or another boundary).

        copying: as of `copying_for`.
        """
        info = self.target.info()
        limit = min(len(prompt) + max_tokens, info.context_length)
        eos_ids = () if sampling.ignore_eos else info.eos_ids
        controller = Controller(stopping, verification(acceptance), limit, copying_for(stopping, eos_ids, copying))
        boundary = boundary or TokenBoundary(eos_ids, limit - len(prompt))
        session = os.urandom(16)

        def propose(context: Context, plan: DraftPlan) -> Draft:
            if plan.max_candidates == 0:
                return Draft()
            return self.draft.propose(DraftRequest(whole(session, context), sampling, plan, 0))

        def verify(context: Context, draft: Draft, state: AcceptanceState) -> Verdict:
            told = whole(session, context)
            rule = judging(acceptance, draft)
            request = VerifyRequest(told, sampling, draft, rule, state.pack(), 0, top_logprobs)
            return self.target.verify(request)

        try:
            yield from decode(prompt, controller, boundary, propose, verify)
        finally:
            self.draft.release(session)
            self.target.release(session)


def whole(session: bytes, context: Context) -> ContextDelta:
    """A message that names the whole context."""
    return ContextDelta(session, context.base, context.prompt_length, 0, list(context.ids), context.hash)
