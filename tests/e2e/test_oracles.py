"""The running stack against independent oracles: the loop in one process, the target alone, exact distributions."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from adasd.cli.stack import StackOptions
from adasd.core.errors import InvalidRequest
from adasd.core.grammar import Grammar
from adasd.core.stopping import stopping_rule
from adasd.core.types import Processing, SamplingParams
from tests.e2e.conftest import TOY, Served, gauge, serve

STOPPING = ["off", "fixed", "adasd", "marginal"]
ACCEPTANCE = ["exact", "adasd", "adasd-anchored", "coupled"]


def oracle_ids(served: Served, answer: dict, stopping: str, acceptance: str, tokens: int, **sampling: Any) -> list[int]:
    """The same request through `adasd.core.decoding` in this process."""
    rounds = served.oracle.generate(
        answer["prompt_ids"],
        SamplingParams(**sampling),
        stopping_rule(stopping, None),
        acceptance,
        tokens,  # type: ignore[arg-type]
        copying=True,
    )
    return list(itertools.chain.from_iterable(r.verdict.tokens for r in rounds))


@pytest.mark.parametrize("acceptance", ACCEPTANCE)
@pytest.mark.parametrize("stopping", STOPPING)
@pytest.mark.parametrize("rig", ["twin", "between", "stranger", "beside"])
def test_the_services_give_the_text_of_the_reference_loop(
    request: pytest.FixtureRequest, rig: str, stopping: str, acceptance: str
) -> None:
    served: Served = request.getfixturevalue(rig)
    rules = {"stopping": stopping, "acceptance": acceptance}
    for seed, sampling in (
        (1, {"temperature": 1.0}),
        (2, {"temperature": 0.7, "top_p": 0.9}),
        (3, {"temperature": 0.0}),
    ):
        answer = served.answer("tell me more", max_tokens=60, seed=seed, speculation=rules, **sampling)
        assert answer["ids"] == oracle_ids(served, answer, stopping, acceptance, 60, seed=seed, **sampling)


@pytest.mark.parametrize("acceptance", ACCEPTANCE)
def test_texts_of_a_grammar_are_those_of_the_reference_loop(between: Served, acceptance: str) -> None:
    served = between
    rules, regex = {"stopping": "fixed", "acceptance": acceptance}, "([a-f]{1,4}[.,] ){5,40}"
    processing = Processing(eos_ids=(0,), grammar=Grammar("regex", regex))
    for seed, sampling in ((1, {"temperature": 1.0}), (2, {"temperature": 0.0}), (3, {"temperature": 0.7, "top_k": 5})):
        fields = {"max_tokens": 40, "seed": seed, "structured_outputs": {"regex": regex}, **sampling}
        answer = served.answer("tell me more", speculation=rules, **fields)
        alike = {"seed": seed, "processing": processing, **sampling}
        assert answer["ids"] == oracle_ids(served, answer, "fixed", acceptance, 40, **alike)
        text = answer["choices"][0]["message"]["content"]
        assert re.match(regex, text)
        assert answer["choices"][0]["finish_reason"] == "length" or re.fullmatch(regex, text)


PROCESSING = {"frequency_penalty": 2, "presence_penalty": -1, "repetition_penalty": 1.3, "min_tokens": 70}
OWN_TEXTS: dict[str, dict] = {
    "greedy": {"temperature": 0.0},
    "coupled": {"temperature": 1.0},
    "greedy, processed": {"temperature": 0.0, "logit_bias": {"0": 4, "7": -100}, **PROCESSING},
    "coupled, processed": {"temperature": 1.0, "top_k": 12, "top_p": 0.9, "logit_bias": {"0": 4}, **PROCESSING},
}


@pytest.mark.parametrize("sampling", OWN_TEXTS.values(), ids=OWN_TEXTS)
def test_text_does_not_depend_on_the_draft(twin: Served, between: Served, stranger: Served, sampling: dict) -> None:
    """Greedy and coupled texts are the target's own, whatever drafts and however far."""
    texts = set()
    for served in (twin, between, stranger):
        for stopping in STOPPING:
            rules = {"stopping": stopping, "acceptance": "coupled" if sampling["temperature"] else "adasd-anchored"}
            answer = served.answer("one text", max_tokens=80, seed=5, speculation=rules, **sampling)
            texts.add(tuple(answer["ids"]))
    assert len(texts) == 1
    assert len(next(iter(texts))) > 20


def test_twins_accept_every_candidate(twin: Served) -> None:
    rules = {"stopping": "adasd", "acceptance": "exact"}
    record = twin.answer("count", max_tokens=300, temperature=0, speculation=rules)["speculation"]
    assert record["drafted"] > 250
    assert record["accepted"] == record["drafted"]
    assert record["acceptance_rate"] == 1.0


def test_strangers_change_nothing_but_the_speed(stranger: Served) -> None:
    alone = stranger.answer("count", max_tokens=120, temperature=0, speculation={"stopping": "off"})
    drafted = stranger.answer("count", max_tokens=120, temperature=0, speculation={"stopping": "fixed"})
    assert drafted["ids"] == alone["ids"]
    assert drafted["speculation"]["acceptance_rate"] < 0.3
    assert alone["speculation"]["drafted"] == 0


def test_a_model_that_shares_cores_has_its_drafter_beside_it_unless_told_otherwise(tmp_path: Path) -> None:
    options = StackOptions("draft", "target", tmp_path, "model", tmp_path)
    assert options.placed(None).beside
    assert not options.placed(False).beside
    assert not replace(options, target=TOY).placed(None).beside, "a toy computes nothing"
    for given in ({"ADASD_DRAFTER_METRICS_PORT": "9"}, {"ADASD_VERIFIER_RUNTIME__DEVICE": "cuda"}):
        assert not replace(options, environment=given).placed(None).beside
    assert replace(options, environment={"ADASD_DRAFTER_RUNTIME__THREADS": "1"}).placed(None).beside


def test_a_drafter_beside_the_verifier_is_no_process_and_counts_what_it_does(beside: Served) -> None:
    assert sorted(beside.stack.children) == ["gateway", "verifier"]
    beside.answer(max_tokens=24, seed=3, speculation={"stopping": "fixed", "acceptance": "exact"})
    assert gauge(beside.stack.metrics["verifier"], "adasd_drafter_candidates_total") > 0
    assert gauge(beside.stack.metrics["verifier"], "adasd_drafter_requests_total") == 0


def test_what_only_a_drafter_by_itself_heeds_is_refused(toy_tokenizer: Path, tmp_path: Path) -> None:
    given = {"ADASD_DRAFTER_MAX_STREAMS": "4"}
    with pytest.raises(InvalidRequest, match="ADASD_DRAFTER_MAX_STREAMS"):
        next(serve(tmp_path, "redis://127.0.0.1:1", TOY, TOY, toy_tokenizer, environment=given, beside=True))
