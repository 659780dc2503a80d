"""What drafter and verifier are asked and answer, free of any wire format. Every message says where it starts from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from adasd.core.course import Course
from adasd.core.errors import InvalidRequest
from adasd.core.types import MAX_TOP_LOGPROBS, Draft, DraftPlan, SamplingParams
from adasd.core.verdicts import Verdict

MAX_ROUNDS = 64
"""Of a run."""

NextRound = Literal["unknown", "plain", "none"]
"""What can be said of the next round before this one's outcome is known: that it has no candidates, or is not to be."""


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What the two sides must agree on, and what clients may know.

    vocabulary: width of the logits. context_length: positions the model can attend to.
    vocabulary_fingerprint: over the tokenizer's token strings, the special ids and the EOS set (not the padding), and
    the library that grammars are read by.
    weights_fingerprint: identifies these weights; stored with every session.
    support: ids the model can give probability to, fewer than `vocabulary` for a trimmed head.
    passes: seconds of a pass over 1, 2, 4, ... rows before the first request; empty where nobody measured.
    runs_ahead: whether a verifier begins rounds before they are asked for, where they will hardly have candidates.
    drafts: of a verifier, the weights of the drafter beside it; empty where there is none.
    """

    name: str
    vocabulary: int
    context_length: int
    eos_ids: tuple[int, ...]
    vocabulary_fingerprint: str
    weights_fingerprint: str
    support: int
    passes: tuple[float, ...] = field(default=(), compare=False)
    runs_ahead: bool = field(default=False, compare=False)
    drafts: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class ContextDelta:
    """The committed context of a session, without what the replica has seen on this stream.

    session: 16 bytes. base: committed length. prompt_length: of which prompt. ids: ids[start:base].
    hash: `context_hash` of ids[:base].
    """

    session: bytes
    base: int
    prompt_length: int
    start: int
    ids: Sequence[int]
    hash: bytes


@dataclass(frozen=True, slots=True)
class Timing:
    """Where a replica's time for one message went, in seconds. forwards: passes of the model it took part in.

    queue: waiting for the device. forward: in these passes, whoever else was in them. rules: sampling or judging.
    sessions, tokens: in these passes altogether, each pass counted by itself. ahead: of all these seconds, those that
    had gone by when the message came, because its round was begun before.
    """

    forwards: int = 0
    queue: float = 0.0
    forward: float = 0.0
    rules: float = 0.0
    sessions: int = 0
    tokens: int = 0
    ahead: float = 0.0

    @property
    def whole(self) -> float:
        """Seconds from when it could begin to its end."""
        return self.queue + self.forward + self.rules

    def part(self, count: int) -> Timing:
        """About what one took of so many messages' worth, in whole passes, which are what they were."""
        forwards = max(1, round(self.forwards / count)) if self.forwards else 0
        share = forwards / self.forwards if forwards else 1.0 / count
        seconds = share * self.queue, share * self.forward, share * self.rules
        return Timing(forwards, *seconds, round(share * self.sessions), round(share * self.tokens), share * self.ahead)


@dataclass(frozen=True, slots=True)
class DraftRequest:
    """Draft after `context.base` as far as the plan goes; a plan of 0 candidates only reads the context."""

    context: ContextDelta
    sampling: SamplingParams
    plan: DraftPlan
    round_number: int


@dataclass(frozen=True, slots=True)
class DraftReply:
    """round_number, base: of the request this answers."""

    round_number: int
    base: int
    draft: Draft
    timing: Timing = field(default=Timing(), compare=False)


@dataclass(frozen=True, slots=True)
class VerifyRequest:
    """Judge `draft` after `context.base` under the named acceptance rule.

    state: packed AcceptanceState as of `base`. top_logprobs: of how many of the likeliest ids each token's entry in
    `Verdict.logprobs` tells beside its own; None wants no entries. next_round: a hint, by which the verifier may begin
    it before it is asked for. rounds: how many to take at most, one after another, before answering; those after the
    first have no candidates. The answer to several is a run, perhaps a shorter one. expected_acceptance: the chance
    that a candidate stands if those before it do, by which a long block may be read in two parts; None has it read in
    one. plan: instead of a draft: the drafter beside the verifier is asked for one first. course: how rounds go on
    after that, each planned and judged like the first, before any is answered. Raises InvalidRequest.
    """

    context: ContextDelta
    sampling: SamplingParams
    draft: Draft
    acceptance: str
    state: bytes
    round_number: int
    top_logprobs: int | None = None
    next_round: NextRound = "unknown"
    rounds: int = 1
    expected_acceptance: float | None = None
    plan: DraftPlan | None = None
    course: Course | None = None

    def __post_init__(self) -> None:
        if self.plan is not None and len(self.draft):
            raise InvalidRequest("a question has a draft or a plan for one, not both", "plan")
        if self.plan is not None and self.rounds > 1:
            raise InvalidRequest("a plan is for one round", "rounds")
        if self.course is not None:
            self._check_course(self.course)
        if not 0.0 <= (self.expected_acceptance or 0.0) <= 1.0:
            raise InvalidRequest(
                f"expected_acceptance must be within [0, 1], got {self.expected_acceptance}", "expected_acceptance"
            )
        if not 1 <= self.rounds <= MAX_ROUNDS:
            raise InvalidRequest(f"rounds must be within [1, {MAX_ROUNDS}], got {self.rounds}", "rounds")
        if self.top_logprobs is not None and not 0 <= self.top_logprobs <= MAX_TOP_LOGPROBS:
            raise InvalidRequest(
                f"top_logprobs must be within [0, {MAX_TOP_LOGPROBS}], got {self.top_logprobs}", "top_logprobs"
            )

    def _check_course(self, course: Course) -> None:
        if self.plan is None:
            raise InvalidRequest("a course goes on from a plan", "course")
        if not course.stopping.most:
            raise InvalidRequest("a course is of a rule that drafts", "course.stopping")
        if not 1 <= course.rounds <= MAX_ROUNDS:
            raise InvalidRequest(f"course.rounds must be within [1, {MAX_ROUNDS}], got {course.rounds}", "course")


class Judged(NamedTuple):
    """A block, and what stands of it."""

    draft: Draft
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class VerifyReply:
    """round_number, base: of the request this answers. draft, drafting: where a plan was asked, what was judged of it,
    without rows, and where the time went that is not in `timing`. further: rounds that came of the plan's course.
    """

    round_number: int
    base: int
    verdict: Verdict
    timing: Timing = field(default=Timing(), compare=False)
    draft: Draft = field(default_factory=Draft)
    drafting: Timing = field(default=Timing(), compare=False)
    further: tuple[Judged, ...] = ()

    @property
    def judged(self) -> tuple[Judged, ...]:
        """All rounds of the answer, each with its block."""
        return (Judged(self.draft, self.verdict), *self.further)
