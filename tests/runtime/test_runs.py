"""Several rounds for one message, only the first perhaps with candidates: the tokens of one round after another."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from adasd.core.adaptive import AcceptanceState
from adasd.core.context import Context, context_hash
from adasd.core.errors import InvalidRequest
from adasd.core.grammar import Grammar
from adasd.core.host import HostKernels
from adasd.core.messages import MAX_ROUNDS, ContextDelta, Timing, VerifyRequest
from adasd.core.rows import copied_block
from adasd.core.types import Draft, Processing, SamplingParams
from adasd.core.verdicts import Judgement, Verdict
from adasd.runtime.jobs import at_end, verify_steps
from adasd.runtime.loading import load_grammars
from adasd.runtime.local import whole
from adasd.runtime.options import RuntimeOptions
from adasd.runtime.passes import Job
from adasd.runtime.replica import Replica
from adasd.runtime.toy import ToyRuntime, ToySpec

PROMPT = [3, 1, 4, 1, 5]
STATE = AcceptanceState().pack()
SESSION = b"s" * 16


def replica(**spec: Any) -> Replica[Any]:
    toy = ToySpec(seed=1, **{"vocab": 48, "eos_bias": -np.inf, **spec})
    grammars = load_grammars(f"toy:seed=1,vocab={toy.vocab}", RuntimeOptions())
    return Replica(ToyRuntime(toy), HostKernels(None), None, grammars)


def question(ids: list[int], rounds: int = 1, sampling: SamplingParams | None = None, **more: Any) -> VerifyRequest:
    context = Context(PROMPT)
    context.extend(ids)
    sampling = sampling or SamplingParams(seed=7)
    acceptance = more.pop("acceptance", "exact")
    return VerifyRequest(whole(SESSION, context), sampling, Draft(), acceptance, STATE, len(ids), rounds=rounds, **more)


def one_by_one(count: int, held: Replica[Any], **more: Any) -> tuple[list[int], list[Any]]:
    """The tokens of so many rounds, each asked for by itself, and their log-probabilities."""
    ids: list[int] = []
    logprobs: list[Any] = []
    for _ in range(count):
        verdict = held.verify(question(ids, **more))
        ids += verdict.tokens
        logprobs += verdict.logprobs
    return ids, logprobs


@pytest.mark.parametrize(
    "sampling",
    [
        SamplingParams(seed=7),
        SamplingParams(temperature=0.0),
        SamplingParams(seed=8, top_k=5, top_p=0.9),
        SamplingParams(seed=9, processing=Processing(repetition_penalty=1.4, frequency_penalty=0.5)),
        SamplingParams(seed=3, processing=Processing(eos_ids=(0,), grammar=Grammar("regex", "[a-f]{9}[g-k]{200}"))),
    ],
    ids=["sampled", "greedy", "warped", "penalties", "grammar"],
)
@pytest.mark.parametrize("acceptance", ["exact", "coupled"])
def test_a_run_is_what_its_rounds_would_be(sampling: SamplingParams, acceptance: str) -> None:
    more = {"sampling": sampling, "acceptance": acceptance, "top_logprobs": 2}
    ids, logprobs = one_by_one(35, replica(), **more)
    held, told = replica(), list[int]()
    for length in (1, 7, 2, 1, 12, 12):
        verdict = held.verify(question(told, length, **more))
        assert (verdict.accepted, verdict.emission) == (0, "bonus")
        assert 1 <= verdict.rounds <= length
        begin = len(told)
        told += verdict.tokens
        assert list(verdict.logprobs) == logprobs[begin : len(told)]
    assert told == ids[: len(told)]
    assert len(told) > 12


def timed(held: Replica[Any], asked: VerifyRequest) -> tuple[Verdict, Timing]:
    results: list[Any] = []
    held.batcher.add(Job(held.verify_steps(asked), lambda *result: results.append(result)))
    while not results:
        held.batcher.step()
    verdict, timing = results[0]
    return verdict, timing


def test_a_run_takes_a_pass_a_round_and_nothing_is_read_twice() -> None:
    verdict, timing = timed(replica(), question([], 6))
    assert len(verdict.tokens) == timing.forwards == 6
    assert timing.tokens == len(PROMPT) + 5


def test_runs_end_together_whenever_they_began() -> None:
    held, ended = replica(), list[tuple[int, int]]()

    def begin(number: int, rounds: int) -> None:
        asked = question([], rounds, SamplingParams(seed=number))
        told = replace(asked.context, session=bytes([number]) * 16)
        steps = held.verify_steps(replace(asked, context=told))
        held.batcher.add(Job(steps, lambda verdict, _: ended.append((held.batcher.passes, len(verdict.tokens)))))

    for number, rounds in enumerate((4, 4, 8, 2)):  # each begins a pass after the one before
        begin(number, rounds)
        held.batcher.step()
    while held.batcher.jobs:
        held.batcher.step()
    assert ended == [(4, 4), (4, 3), (4, 1), (8, 6)]


def test_a_run_is_never_longer_than_was_asked_for() -> None:
    """Though it was not in the pass with which it should have ended."""
    held, results = replica(), list[Verdict]()
    steps = verify_steps(held._sessions, held.info(), question([], 3), lambda: 1)
    held.batcher.add(Job(steps, lambda verdict, _: results.append(verdict)))
    while held.batcher.jobs:
        held.batcher.step()
    assert [verdict.rounds for verdict in results] == [3]


def test_what_comes_after_a_run_is_known_before_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    held = replica()
    verdict = held.verify(question([], 4))
    text = [*PROMPT, *verdict.tokens]
    assert held.context_hash(SESSION).digest == context_hash(text)
    delta = ContextDelta(SESSION, len(text), len(PROMPT), len(PROMPT), list(verdict.tokens), context_hash(text))
    _, timing = timed(held, replace(question(list(verdict.tokens), 2), context=delta))
    assert timing.tokens == 2


def test_a_text_may_have_ended_before_its_run_did() -> None:
    """As the gateway says, who knows of stop strings: it goes on with another text, from within the run."""
    held = replica()
    verdict = held.verify(question([], 8))
    kept = [*verdict.tokens[:3], 9]
    assert held.verify(question(kept, 4)) == replica().verify(question(kept, 4))


@pytest.mark.parametrize("ignored", [False, True])
def test_eos_ends_a_run_unless_it_is_ignored(ignored: bool) -> None:
    sampling = SamplingParams(seed=7, ignore_eos=ignored)
    verdict = replica(eos_bias=1.0).verify(question([], 40, sampling))
    ends = [place for place, token in enumerate(verdict.tokens) if token == 0]
    assert ends
    assert len(verdict.tokens) == (40 if ignored else ends[0] + 1)


def test_a_run_ends_where_the_context_does() -> None:
    held = replica(context=len(PROMPT) + 3)
    verdict = held.verify(question([], 9))
    assert len(verdict.tokens) == 4
    assert list(verdict.tokens) == one_by_one(4, replica(context=len(PROMPT) + 3))[0]


def test_a_run_that_comes_upon_a_fault_tells_what_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next message is told the fault, as it would have been anyway."""
    held = replica()
    processing = Processing(logit_bias=((5, 1.0),))
    sampling = SamplingParams(seed=7, processing=processing)
    ids, _ = one_by_one(3, replica(), sampling=sampling)
    from adasd.runtime import jobs

    whole_processor = jobs.Processor.edits

    def edits(self: Any, candidates: Any, rows: int = 1) -> Any:
        if self._generated >= 3:
            raise InvalidRequest("no further")
        return whole_processor(self, candidates, rows)

    monkeypatch.setattr(jobs.Processor, "edits", edits)
    assert list(held.verify(question([], 8, sampling)).tokens) == ids
    with pytest.raises(InvalidRequest, match="no further"):
        held.verify(question(ids, 8, sampling))


@pytest.mark.parametrize("rounds", [0, -1, MAX_ROUNDS + 1])
def test_a_length_that_is_none_is_refused(rounds: int) -> None:
    with pytest.raises(InvalidRequest, match="rounds"):
        question([], rounds)


@pytest.mark.parametrize("stand", [0, 2, 4])
@pytest.mark.parametrize("acceptance", ["exact", "adasd", "coupled"])
@pytest.mark.parametrize(
    "processing",
    [
        Processing(),
        Processing(repetition_penalty=1.4),
        Processing(eos_ids=(0,), grammar=Grammar("regex", "[a-f]{9}[g-k]{200}")),
    ],
    ids=["plain", "penalties", "grammar"],
)
def test_a_run_goes_on_from_a_block_as_its_rounds_would(processing: Processing, acceptance: str, stand: int) -> None:
    more: dict[str, Any] = {"sampling": SamplingParams(temperature=0.0, processing=processing), "top_logprobs": 2}
    expected, logprobs = one_by_one(20, replica(), acceptance=acceptance, **more)
    held, single = replica(), replica()
    told = list(held.verify(question([], 2, acceptance=acceptance, **more)).tokens)
    here = len(told)
    candidates = [*expected[here : here + stand], *([] if stand == 4 else [expected[here + stand] ^ 1, 3])]
    asked = replace(question(told, 5, acceptance=acceptance, **more), draft=copied_block(candidates))
    block = single.verify(replace(asked, rounds=1))
    run, timing = timed(held, asked)
    assert (block.accepted, run.accepted, run.judgements) == (stand, stand, block.judgements)
    assert run.tokens == tuple(expected[here : here + len(run.tokens)])
    assert list(run.logprobs) == logprobs[here : here + len(run.tokens)]
    assert 1 < run.rounds == timing.forwards <= 5
    assert len(run.tokens) == stand + run.rounds
    assert timing.tokens == 1 + len(candidates) + run.rounds - 1, "nothing is read twice"
    assert [run.cut(length) for length in range(1, stand + 2)] == [block.cut(n) for n in range(1, stand + 1)] + [block]
    told += run.tokens
    assert held.verify(question(told, acceptance=acceptance, **more)).tokens == (expected[len(told)],)


def test_an_end_of_text_within_a_block_ends_its_run() -> None:
    sampling = SamplingParams(temperature=0.0, processing=Processing(logit_bias=((0, 99.0),)))
    for candidates in ([5, 0], [0]):
        asked = replace(question([], 6, sampling), draft=copied_block(candidates))
        assert replica(eos_bias=0.0).verify(asked) == replica(eos_bias=0.0).verify(replace(asked, rounds=1))
        ignored = replace(asked, sampling=replace(sampling, ignore_eos=True))
        assert replica(eos_bias=0.0).verify(ignored).rounds == 6
    assert at_end(Verdict((0, 7), 1, "bonus"), SamplingParams(), (0,)), "whatever comes after an accepted one"


def test_a_run_is_cut_by_the_token_and_counts_by_it() -> None:
    run = Verdict((1, 2), 0, "bonus").then(Verdict((3,), 0, "bonus"))
    assert run == Verdict((1, 2, 3), 0, "bonus")
    assert [run.cut(length) for length in (3, 2, 1)] == [run, Verdict((1, 2), 0, "bonus"), Verdict((1,), 0, "bonus")]
    assert [run.cut(length).rounds for length in (3, 2, 1)] == [3, 2, 1]
    block = Verdict((1, 2, 3), 2, "recovered", (Judgement(0.1, True, True),) * 2 + (Judgement(0.9, False, False),))
    assert [block.cut(length).rounds for length in (3, 2, 1)] == [1, 1, 1]
    longer = block.then(Verdict((4,), 0, "bonus")).then(Verdict((5,), 0, "bonus"))
    assert (longer.tokens, longer.accepted, longer.rounds, longer.emission) == ((1, 2, 3, 4, 5), 2, 3, "bonus")
    assert [longer.cut(length) for length in (3, 2, 1)] == [block.cut(length) for length in (3, 2, 1)]
    assert (longer.cut(4).rounds, longer.cut(4).judgements) == (2, block.judgements)
