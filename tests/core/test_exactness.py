"""The proof of exactness: the joint distribution of the text equals the target's, by enumeration of every draw."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from adasd.core.acceptance import AcceptanceRule, ExactAcceptance
from adasd.core.adaptive import AcceptanceState
from adasd.core.backend import Proposal
from adasd.core.context import Context
from adasd.core.copying import copying_for
from adasd.core.costs import CostProfile
from adasd.core.decoding import Controller, ProposeBlock, TokenBoundary, VerifyBlock, decode
from adasd.core.drafting import draft_block
from adasd.core.draws import DrawKey, Draws
from adasd.core.grammar import Grammar, Progress
from adasd.core.host import HostKernels, HostTarget
from adasd.core.marginal import Marginal
from adasd.core.outlook import NOTHING_KNOWN, Outlook
from adasd.core.processing import Processor
from adasd.core.rows import dense_row, sparse_row
from adasd.core.sampling import entropy_bits, warp
from adasd.core.stopping import AdaSDStopping, Fixed, Off, StoppingRule
from adasd.core.types import Draft, DraftPlan, Evidence, FloatArray, Processing, Row, SamplingParams
from adasd.core.verdicts import Judgement, Verdict
from adasd.core.verification import RatioVerification, Verification
from adasd.core.worth import ENTROPY_NODES, Worth
from tests.core.branching import BranchingDraws, KeyOf, by_base, by_position, enumerate_outcomes
from tests.core.listed import Listed
from tests.core.one_at_a_time import processed

LENGTH = 4
Table = Callable[[Sequence[int]], FloatArray]


def table(seed: int, vocabulary: int) -> Table:
    """A random next-token distribution for every context."""

    def row(ids: Sequence[int]) -> FloatArray:
        rng = np.random.default_rng([seed, *(token + 1 for token in ids)])
        return rng.dirichlet(np.full(vocabulary, 0.7))

    return row


def point(ids: Sequence[int]) -> FloatArray:
    return np.array([1.0, 0.0, 0.0])


def upper(ids: Sequence[int]) -> FloatArray:
    return np.array([0.0, 0.5, 0.5]) if len(ids) % 2 else np.array([0.0, 0.25, 0.75])


def lower_only(ids: Sequence[int]) -> FloatArray:
    return np.array([1.0, 0.0, 0.0])


def sparse(q: FloatArray) -> Row:
    return sparse_row(np.flatnonzero(q), q[q > 0])


def truncated(q: FloatArray) -> Row:
    """The draft's own support: its two most likely ids."""
    ids = np.argsort(-q)[:2]
    return sparse_row(ids, q[ids] / q[ids].sum())


@dataclass
class Pair:
    """A target and a draft over one tiny vocabulary, decoded by the product's own loop."""

    target: Table
    draft: Table
    row: Callable[[FloatArray], Row] = dense_row
    stopping: StoppingRule = field(default_factory=AdaSDStopping)
    rule: AcceptanceRule = field(default_factory=ExactAcceptance)
    eos_ids: tuple[int, ...] = ()
    length: int = LENGTH
    prompt: tuple[int, ...] = (0,)
    copying: bool = False
    copies: int = 0

    def text(self, draws: Draws) -> tuple[int, ...]:
        def propose(context: Context, plan: DraftPlan) -> Draft:
            def step(candidates: Sequence[int]) -> Proposal:
                q = self.draft([*context.ids, *candidates])
                return Proposal(entropy_bits(q), self.row(q))

            return draft_block(step, plan, context.base, draws, self.eos_ids)

        def verify(context: Context, draft: Draft, state: AcceptanceState) -> Verdict:
            p = np.stack([self.target([*context.ids, *draft.ids[:i]]) for i in range(len(draft) + 1)])
            return verification.verify(HostTarget(p, p), draft, state.posterior, context.base, draws)

        verification = RatioVerification(self.rule)
        return self.decoded(verification, propose, verify)

    def decoded(self, verification: Verification, propose: ProposeBlock, verify: VerifyBlock) -> tuple[int, ...]:
        copying = copying_for(self.stopping, self.eos_ids, self.copying)
        controller = Controller(self.stopping, verification, len(self.prompt) + self.length, copying)
        rounds = list(decode(self.prompt, controller, TokenBoundary(self.eos_ids, self.length), propose, verify))
        self.copies += sum(r.draft.copied for r in rounds)
        return tuple(itertools.chain.from_iterable(r.verdict.tokens for r in rounds))

    def expected(self) -> dict[tuple[int, ...], float]:
        """The target's own joint distribution."""
        open_texts, done = {(): 1.0}, {}
        for _ in range(self.length):
            grown: dict[tuple[int, ...], float] = {}
            for text, mass in open_texts.items():
                for token, p in enumerate(self.target([*self.prompt, *text])):
                    if p > 0:
                        (done if token in self.eos_ids else grown)[(*text, token)] = mass * p
            open_texts = grown
        return done | open_texts


def distance(pair: Pair, key_of: KeyOf = by_base) -> float:
    """Largest error of the enumerated joint distribution."""
    found, expected = enumerate_outcomes(pair.text, key_of), pair.expected()
    assert sum(found.values()) == pytest.approx(1.0, abs=1e-12)
    return max(abs(found.get(text, 0.0) - expected.get(text, 0.0)) for text in found.keys() | expected.keys())


COSTS = CostProfile("tests", fixed=0.3, draft=0.1, verify=(1.0, 1.2, 1.4, 1.6))


@dataclass(frozen=True)
class Selective:
    """A marginal plan under which candidates from flat rows are left out once their step is taken, others kept."""

    def plan(self, state: AcceptanceState, outlook: Outlook = NOTHING_KNOWN) -> DraftPlan:
        return DraftPlan(3, worth=Worth(tuple(np.linspace(1.0, 0.0, ENTROPY_NODES) ** 4), 0.6, 0.95, COSTS))


STOPPING = [Off(), Fixed(1), Fixed(2), Fixed(3), AdaSDStopping(), AdaSDStopping(2)]
STOPPING += [Marginal(3, lambda: COSTS), Selective()]
NAMES = [f"{type(rule).__name__}{place}" for place, rule in enumerate(STOPPING)]


@pytest.mark.parametrize("stopping", STOPPING, ids=NAMES)
@pytest.mark.parametrize("row", [dense_row, sparse, truncated])
@pytest.mark.parametrize("vocabulary", [2, 3])
def test_exact_acceptance_gives_the_targets_joint_distribution(
    stopping: StoppingRule, row: Callable[[FloatArray], Row], vocabulary: int
) -> None:
    assert distance(Pair(table(1, vocabulary), table(2, vocabulary), row, stopping)) < 1e-12


@pytest.mark.parametrize("eos_ids", [(), (1,)], ids=["endless", "with an end"])
@pytest.mark.parametrize("draft", [table(2, 2), table(1, 2)], ids=["another", "the same"])
def test_candidates_that_are_copied_leave_it_as_it_is(draft: Table, eos_ids: tuple[int, ...]) -> None:
    """Among candidates that are drafted, in rounds that the text so far decides on."""
    pair = Pair(table(1, 2), draft, stopping=Marginal(3, lambda: COSTS), length=5, eos_ids=eos_ids)
    pair = replace(pair, prompt=(0, 1, 1, 0, 0, 1, 0), copying=True)
    assert distance(pair) < 1e-12
    assert pair.copies >= 10


@pytest.mark.parametrize("stopping", [Fixed(2), AdaSDStopping(2)], ids=repr)
def test_vocabulary_of_four(stopping: StoppingRule) -> None:
    assert distance(Pair(table(3, 4), table(4, 4), sparse, stopping, length=3)) < 1e-12


@pytest.mark.parametrize("stopping", STOPPING, ids=NAMES)
@pytest.mark.parametrize(
    ("target", "draft"),
    [(table(5, 3), table(5, 3)), (upper, lower_only), (point, table(6, 3)), (table(7, 3), point), (upper, upper)],
    ids=["draft = target", "disjoint supports", "certain target", "certain draft", "zeros in both"],
)
def test_special_pairs(stopping: StoppingRule, target: Table, draft: Table) -> None:
    assert distance(Pair(target, draft, sparse, stopping)) < 1e-12


@pytest.mark.parametrize("stopping", [Fixed(3), AdaSDStopping()], ids=repr)
def test_texts_that_end_inside_a_block(stopping: StoppingRule) -> None:
    assert distance(Pair(table(8, 3), table(9, 3), dense_row, stopping, eos_ids=(1,))) < 1e-12


@dataclass
class ProcessedPair(Pair):
    """Both models' tables are raw; what is expected is processed one token at a time, after the prompt 0."""

    sampling: SamplingParams = field(default_factory=SamplingParams)
    support: int | None = None

    def progress(self) -> Progress | None:
        """Of one side, in a grammar."""
        return None

    def text(self, draws: Draws) -> tuple[int, ...]:
        kernels, processing = HostKernels(self.support), self.sampling.processing
        drafted, verified = self.progress(), self.progress()

        def propose(context: Context, plan: DraftPlan) -> Draft:
            processor = Processor(processing, context.ids, context.prompt_length, drafted)

            def step(candidates: Sequence[int]) -> Proposal:
                with np.errstate(divide="ignore"):
                    logits = np.log(self.draft([*context.ids, *candidates]))
                return kernels.propose(logits, self.sampling, processor.edits(candidates))

            return draft_block(step, plan, context.base, draws, self.eos_ids)

        def verify(context: Context, draft: Draft, state: AcceptanceState) -> Verdict:
            rows = len(draft) + 1
            logits = np.log([self.target([*context.ids, *draft.ids[:i]]) for i in range(rows)])
            edits = Processor(processing, context.ids, context.prompt_length, verified).edits(draft.ids, rows)
            target = kernels.target(logits, self.sampling, edits)
            return verification.verify(target, draft, state.posterior, context.base, draws)

        verification = RatioVerification(self.rule)
        return self.decoded(verification, propose, verify)

    def expected(self) -> dict[tuple[int, ...], float]:
        def alone(ids: Sequence[int]) -> FloatArray:
            logits = processed(np.log(self.target(ids)), self.sampling.processing, ids[:1], list(ids[1:]))
            return warp(logits, self.sampling)

        return Pair(alone, self.draft, eos_ids=self.eos_ids, length=self.length).expected()


PROCESSINGS = {
    "penalties": Processing(repetition_penalty=1.7, frequency_penalty=0.9, presence_penalty=-0.6),
    "bias": Processing(logit_bias=((0, 1.5), (2, -100.0))),
    "min_tokens": Processing(min_tokens=2, eos_ids=(1,)),
    "all": Processing(((2, 0.8),), 0.6, -0.5, 1.0, 3, (1,)),
}


@pytest.mark.parametrize("stopping", STOPPING, ids=NAMES)
@pytest.mark.parametrize("processing", PROCESSINGS.values(), ids=PROCESSINGS)
def test_processed_distributions_are_met_exactly(stopping: StoppingRule, processing: Processing) -> None:
    sampling = SamplingParams(temperature=0.8, processing=processing)
    pair = ProcessedPair(table(12, 3), table(13, 3), stopping=stopping, eos_ids=(1,), sampling=sampling)
    assert distance(pair) < 1e-12


def test_processed_distributions_are_cut_afterwards() -> None:
    """top_k after the penalties, and a draft that samples from its two likeliest processed ids."""
    sampling = SamplingParams(top_k=2, processing=PROCESSINGS["all"])
    pair = ProcessedPair(table(14, 4), table(15, 4), stopping=Fixed(2), length=3, sampling=sampling, support=2)
    assert distance(pair) < 1e-12


TEXTS = {(0,), (0, 2), (0, 2, 2), (0, 0, 2, 0), (2, 0), (2, 2, 2, 2)}
GRAMMAR = Processing(((2, 0.5),), frequency_penalty=0.4, eos_ids=(1,), grammar=Grammar("regex", "of TEXTS"))


@dataclass
class GrammarPair(ProcessedPair):
    """Both sides follow a grammar of a few texts; what is expected is masked by looking them up."""

    def progress(self) -> Progress:
        return Progress(Listed(TEXTS, 3))

    def expected(self) -> dict[tuple[int, ...], float]:
        def alone(ids: Sequence[int]) -> FloatArray:
            text = tuple(ids[1:])
            logits = processed(np.log(self.target(ids)), self.sampling.processing, ids[:1], list(text))
            follows = [any(known[: len(text) + 1] == (*text, token) for known in TEXTS) for token in range(3)]
            follows[1] = text in TEXTS
            return warp(np.where(follows, logits, -np.inf), self.sampling)

        return Pair(alone, self.draft, eos_ids=self.eos_ids, length=self.length).expected()


@pytest.mark.parametrize("stopping", STOPPING, ids=NAMES)
@pytest.mark.parametrize("seed", [16, 17, 18])
def test_texts_of_a_grammar_are_met_exactly(stopping: StoppingRule, seed: int) -> None:
    """Masked on both sides; forced tokens, texts that may end and go on, and such as are cut by the length."""
    sampling = SamplingParams(temperature=0.8, processing=GRAMMAR)
    pair = GrammarPair(table(seed, 3), table(seed + 9, 3), stopping=stopping, eos_ids=(1,), sampling=sampling)
    assert distance(pair) < 1e-12


def test_a_draft_that_knows_no_grammar_costs_acceptance_only() -> None:
    """Rows past a candidate that the grammar does not allow are never used."""

    class Forgetful(GrammarPair):
        def progress(self) -> Progress | None:  # type: ignore[override]
            self.asked = not getattr(self, "asked", False)
            return None if self.asked else super().progress()

    sampling = SamplingParams(processing=GRAMMAR)
    for stopping in (Fixed(2), Fixed(3)):
        pair = Forgetful(table(16, 3), table(25, 3), stopping=stopping, eos_ids=(1,), sampling=sampling)
        assert distance(pair) < 1e-12


@pytest.mark.parametrize("seed", [16, 17])
def test_a_copy_that_the_grammar_does_not_allow_costs_acceptance_only(seed: int) -> None:
    """The text 0 0 after the prompt 0 foresees another 0; the grammar has 2 there."""
    sampling = SamplingParams(processing=GRAMMAR)
    dear = Marginal(3, lambda: replace(COSTS, fixed=3.0))
    pair = GrammarPair(table(seed, 3), table(seed + 9, 3), stopping=dear, eos_ids=(1,), sampling=sampling)
    pair = replace(pair, copying=True)
    assert distance(pair) < 1e-12
    assert pair.copies > 0


def test_a_draft_whose_support_holds_nothing_allowed_ends_its_block() -> None:
    sampling = SamplingParams(processing=GRAMMAR)
    pair = GrammarPair(table(16, 3), lower_only, stopping=Fixed(3), eos_ids=(1,), sampling=sampling)
    assert distance(pair) < 1e-12


@dataclass(frozen=True)
class LooksAtDiscarded:
    """Drafts iff the last candidate drawn, discarded or not, was token 0."""

    last: list[int]

    def plan(self, state: AcceptanceState, outlook: Outlook = NOTHING_KNOWN) -> DraftPlan:
        return DraftPlan(2 if not self.last or self.last[-1] == 0 else 0)


class DiscardedPair(Pair):
    """Feeds every drafted block, discarded candidates too, to the stopping rule."""

    def text(self, draws: Draws) -> tuple[int, ...]:
        seen: list[int] = []
        self.stopping = LooksAtDiscarded(seen)

        class Recording:
            def bernoulli(self, key: DrawKey, probability: float) -> bool:
                return draws.bernoulli(key, probability)

            def categorical(self, key: DrawKey, weights: FloatArray) -> int:
                index = draws.categorical(key, weights)
                if key.purpose == 0:
                    seen.append(index)
                return index

            def gumbel(self, position: int, ids: FloatArray) -> FloatArray:
                raise AssertionError

        return super().text(Recording())  # type: ignore[arg-type]


def test_a_rule_that_has_seen_discarded_candidates_is_exact_with_keys_by_base() -> None:
    assert distance(DiscardedPair(table(10, 2), table(11, 2))) < 1e-12


def test_the_same_rule_is_not_exact_with_keys_by_absolute_position() -> None:
    assert distance(DiscardedPair(table(10, 2), table(11, 2)), by_position) > 1e-3


@dataclass(frozen=True)
class AcceptsTooMuch:
    labels: str = "exact"

    def judge(self, evidence: Evidence, posterior: object, key: DrawKey, draws: Draws) -> Judgement:
        accepted = draws.bernoulli(key, min(1.0, 1.05 * evidence.p / evidence.q))
        return Judgement(evidence.distance, accepted, accepted)


def test_the_proof_sees_an_acceptance_that_is_slightly_wrong() -> None:
    assert distance(Pair(table(1, 3), table(2, 3), rule=AcceptsTooMuch())) > 1e-4  # type: ignore[arg-type]


def test_one_key_has_one_value() -> None:
    key = DrawKey(1, 0, 1)  # type: ignore[arg-type]

    def twice(draws: BranchingDraws) -> tuple[bool, bool]:
        return draws.bernoulli(key, 0.3), draws.bernoulli(key, 0.5)

    assert enumerate_outcomes(twice) == pytest.approx({(True, True): 0.3, (False, True): 0.2, (False, False): 0.5})
