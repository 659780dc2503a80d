"""The bodies of one answer: chunks of a stream, or the whole. Shapes as OpenAI documents them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from adasd.core.progress import Counters, GenerationState
from services.gateway.choices import Choice
from services.gateway.parts import Part
from services.gateway.round_times import RoundTimes
from services.gateway.rules import Rules
from services.gateway.sessions import Kind, Presentation, Session
from services.gateway.transcript import Passage

Body = dict[str, Any]

_OBJECTS: dict[Kind, tuple[str, str]] = {
    "chat": ("chat.completion", "chat.completion.chunk"),
    "text": ("text_completion", "text_completion"),
}


def speculation_record(counters: Counters, threshold: float | None, rules: Rules) -> Body:
    """What speculation did for one answer.

    drafts: rounds with candidates. relaxed: candidates accepted only by relaxation; relaxed_loss: ln(q/p) of those,
    nats. threshold: entropy at which drafting stops by now, bits; null before the first rejection, and where several
    choices have one each.
    """
    return {
        "rounds": counters.rounds,
        "drafts": counters.drafts,
        "drafted": counters.drafted,
        "accepted": counters.accepted,
        "copied": counters.copied,
        "relaxed": counters.relaxed,
        "mean_acceptance_length": counters.mean_acceptance_length,
        "acceptance_rate": counters.acceptance_rate,
        "threshold": threshold,
        "relaxed_loss_mean": counters.loss_total / counters.relaxed if counters.relaxed else None,
        "relaxed_loss_max": counters.loss_max if counters.relaxed else None,
        "floored": counters.floored,
        "stopping": rules.stopping,
        "acceptance": rules.acceptance,
    }


def speculative_decoding(counters: Counters) -> Body:
    """The same in vLLM's words, whose mean counts rounds with candidates only."""
    length = 1 + counters.accepted / counters.drafts if counters.drafts else None
    return {
        "num_drafts": counters.drafts,
        "num_draft_tokens": counters.drafted,
        "num_accepted_tokens": counters.accepted,
        "acceptance_rate": counters.acceptance_rate,
        "mean_acceptance_length": length,
    }


def account(sessions: Sequence[Session], states: Sequence[GenerationState], tokens: int) -> Body:
    """What was used, and what speculation did, for all choices together."""
    counters = _together([state.counters for state in states])
    threshold = states[0].acceptance.rejected_entropy.mean if len(states) == 1 else None
    return {
        "usage": usage(sessions, tokens),
        "speculation": speculation_record(counters, threshold, sessions[0].rules),
        "metrics": {"speculative_decoding": speculative_decoding(counters)},
    }


def usage(sessions: Sequence[Session], tokens: int) -> Body:
    """A prompt with several choices counts once."""
    generations = (session.generation for session in sessions)
    prompt = sum(len(request.prompt) for request in generations if request.sampling.choice == 0)
    return {"prompt_tokens": prompt, "completion_tokens": tokens, "total_tokens": prompt + tokens}


def _together(each: Sequence[Counters]) -> Counters:
    return Counters(
        rounds=sum(counters.rounds for counters in each),
        drafts=sum(counters.drafts for counters in each),
        drafted=sum(counters.drafted for counters in each),
        accepted=sum(counters.accepted for counters in each),
        relaxed=sum(counters.relaxed for counters in each),
        loss_total=sum(counters.loss_total for counters in each),
        loss_max=max(counters.loss_max for counters in each),
        floored=sum(counters.floored for counters in each),
        copied=sum(counters.copied for counters in each),
    )


@dataclass(frozen=True, slots=True)
class Completion:
    """The bodies of one answer."""

    choices: Sequence[Choice]

    def chunk(self, choice: Body) -> Body:
        chunk = {**self._head(streamed=True), "choices": [choice]}
        if not self._presentation.include_usage:
            return chunk
        return {**chunk, "usage": usage(self._sessions, self._tokens) if self._presentation.continuous_usage else None}

    def part_chunk(self, choice: Choice, part: Part, passage: Passage | None) -> Body:
        """What a choice goes on with. passage: whose last part it is, if it is the last of one."""
        chunk = self.chunk(choice.writer.piece(part, choice.taken()))
        if self._presentation.trace and passage is not None and passage.rounds is not None:
            chunk["adasd"] = _trace(passage, choice.telling.times)
        return chunk

    def usage_chunk(self) -> Body:
        return {**self._head(streamed=True), "choices": [], **self._account()}

    def body(self) -> Body:
        """The whole answer."""
        choices = [choice.writer.whole(choice.parts, choice.taken(), choice.finish) for choice in self.choices]
        return {**self._head(streamed=False), "choices": choices, **self._account()}

    def _account(self) -> Body:
        return account(self._sessions, self._ends, self._tokens)

    @property
    def _sessions(self) -> list[Session]:
        return [choice.session for choice in self.choices]

    @property
    def _ends(self) -> list[GenerationState]:
        return [choice.end for choice in self.choices if choice.end is not None]

    @property
    def _tokens(self) -> int:
        return sum(choice.tokens for choice in self.choices)

    @property
    def _presentation(self) -> Presentation:
        return self.choices[0].session.presentation

    def _head(self, streamed: bool) -> Body:
        presentation = self._presentation
        return {
            "id": presentation.answer,
            "object": _OBJECTS[presentation.kind][streamed],
            "created": presentation.created,
            "model": presentation.model,
            "system_fingerprint": presentation.fingerprint,
        }


def _trace(passage: Passage, times: RoundTimes) -> Body:
    rounds, pieces = passage.rounds, passage.pieces
    assert rounds is not None, "only what is decoded here has times"
    blocks = [{"accepted": one.verdict.accepted, "tokens": len(one.verdict.tokens)} for one in rounds.each]
    marks = {"rounds": rounds.count, "drafted": rounds.drafted, "accepted": rounds.accepted, "blocks": blocks}
    return {**marks, "tokens": len(pieces), "pieces": pieces, "timing": times.as_dict()}
