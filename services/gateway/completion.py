"""The bodies of one chat completion: chunks of a stream, or the whole answer. Shapes as OpenAI documents them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from adasd.core.messages import ModelInfo
from adasd.core.progress import GenerationState
from services.gateway.round_times import RoundTimes
from services.gateway.sessions import Session
from services.gateway.transcript import Passage

Body = dict[str, Any]


def system_fingerprint(target: ModelInfo, draft: ModelInfo | None, cost_profile: str | None) -> str:
    """Changes with the weights behind an answer, and with the costs where its text depends on them."""
    drafted = draft.weights_fingerprint[:8] if draft else "none"
    return "_".join(["fp", target.weights_fingerprint[:8], drafted, *([cost_profile] if cost_profile else [])])


def speculation_record(state: GenerationState, stopping: str, acceptance: str) -> Body:
    """What speculation did for one answer.

    drafts: rounds with candidates. relaxed: candidates accepted only by relaxation; relaxed_loss: ln(q/p) of those,
    nats. threshold: entropy at which drafting stops by now, bits; null before the first rejection.
    """
    counters = state.counters
    return {
        "rounds": counters.rounds,
        "drafts": counters.drafts,
        "drafted": counters.drafted,
        "accepted": counters.accepted,
        "relaxed": counters.relaxed,
        "mean_acceptance_length": counters.mean_acceptance_length,
        "acceptance_rate": counters.acceptance_rate,
        "threshold": state.acceptance.rejected_entropy.mean,
        "relaxed_loss_mean": counters.loss_total / counters.relaxed if counters.relaxed else None,
        "relaxed_loss_max": counters.loss_max if counters.relaxed else None,
        "floored": counters.floored,
        "stopping": stopping,
        "acceptance": acceptance,
    }


@dataclass(frozen=True, slots=True)
class Completion:
    """The bodies of one answer."""

    session: Session

    def role_chunk(self) -> Body:
        return self._chunk({"role": "assistant", "content": ""})

    def content_chunk(self, passage: Passage, times: RoundTimes) -> Body:
        chunk = self._chunk({"content": "".join(passage.pieces)})
        step, pieces = passage.step, passage.pieces
        if self.session.presentation.trace and step is not None:
            marks = {"accepted": step.verdict.accepted, "tokens": len(pieces), "pieces": pieces}
            chunk["adasd"] = {**marks, "drafted": len(step.draft), "timing": times.as_dict()}
        return chunk

    def finish_chunk(self, state: GenerationState) -> Body:
        return self._chunk({}, state.finish_reason)

    def usage_chunk(self, state: GenerationState, tokens: int) -> Body:
        return {**self._head("chat.completion.chunk"), "choices": [], **self.account(state, tokens)}

    def body(self, text: str, state: GenerationState, tokens: int) -> Body:
        """The whole answer."""
        message = {"role": "assistant", "content": text, "refusal": None}
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": state.finish_reason}
        return {**self._head("chat.completion"), "choices": [choice], **self.account(state, tokens)}

    def account(self, state: GenerationState, tokens: int) -> Body:
        """What was used, and what speculation did."""
        prompt, rules = len(self.session.generation.prompt), self.session.rules
        usage = {"prompt_tokens": prompt, "completion_tokens": tokens, "total_tokens": prompt + tokens}
        return {"usage": usage, "speculation": speculation_record(state, rules.stopping, rules.acceptance)}

    def _chunk(self, delta: Body, finish_reason: str | None = None) -> Body:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        chunk = {**self._head("chat.completion.chunk"), "choices": [choice]}
        return {**chunk, "usage": None} if self.session.presentation.include_usage else chunk

    def _head(self, kind: str) -> Body:
        presentation = self.session.presentation
        return {
            "id": presentation.answer,
            "object": kind,
            "created": presentation.created,
            "model": presentation.model,
            "system_fingerprint": presentation.fingerprint,
        }
