"""A divergence that is forced, and how near the models themselves say it was."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import orjson
import pytest

from adasd.cli.margins import Models, divergence
from adasd.core.draws import CounterDraws
from adasd.core.stopping import stopping_rule
from adasd.core.types import Processing, SamplingParams
from adasd.state.base import StoredSession
from services.gateway.costs import LiveCosts
from services.gateway.request import GenerationRequest
from services.gateway.rules import Rules
from services.gateway.sessions import Presentation, Session

TARGET = "toy:seed=1,vocab=48,sharpness=1.5,eos_bias=-4,context=640"
PROMPT, TOKENS, PLACE = (5, 9, 12), 40, 17
MODELS = Models.load(f"{TARGET},mix=0.35,stranger=2", TARGET)


def stored(sampling: SamplingParams, acceptance: str) -> StoredSession:
    """A finished session as the store would have it: what the models decode by themselves."""
    asked = PROMPT, sampling, stopping_rule("fixed", 3), acceptance, TOKENS
    ids = [*PROMPT, *(token for step in MODELS.pair.generate(*asked) for token in step.verdict.tokens)][: TOKENS + 3]
    rule = stopping_rule("fixed", 3)
    request = GenerationRequest(bytes(16), PROMPT, sampling, rule, acceptance, TOKENS, 640, frozenset({0}), (), True)
    record = Session(request, Rules("fixed", acceptance, 3), Presentation()).record("here", 1, {})
    record = replace(record, parameters=orjson.loads(orjson.dumps(record.parameters)))
    return StoredSession(record, 1, ids, b"", {}, "length")


def forced(ids: list[int]) -> list[int]:
    return [*ids[:PLACE], (ids[PLACE] + 1) % 48, *ids[PLACE + 1 :]]


def test_greedy_parts_by_the_two_best_processed_logits() -> None:
    sampling = SamplingParams(temperature=0.0, processing=Processing(logit_bias=((7, 1.5),), repetition_penalty=1.3))
    expected = stored(sampling, "exact")
    found = divergence(MODELS, expected, forced(list(expected.ids)))
    assert found is not None
    request = Session.of_record(expected.record, LiveCosts()).generation
    second, best = np.sort(MODELS.logits(expected.ids[:PLACE], request)[0])[-2:]
    plain = replace(request, sampling=SamplingParams(temperature=0.0))
    assert not np.allclose(MODELS.logits(expected.ids[:PLACE], request), MODELS.logits(expected.ids[:PLACE], plain))
    assert (found.position, found.expected) == (PLACE - len(PROMPT), expected.ids[PLACE])
    assert found.margin == pytest.approx(best - second)
    assert found.margin > 0
    assert f"token {PLACE - 3}: {found.seen} instead of {found.expected}, margin" in str(found)


def test_coupled_parts_by_the_two_best_perturbed() -> None:
    expected = stored(SamplingParams(temperature=0.8, seed=11), "coupled")
    found = divergence(MODELS, expected, forced(list(expected.ids)))
    assert found is not None
    request = Session.of_record(expected.record, LiveCosts()).generation
    scores = MODELS.logits(expected.ids[:PLACE], request)[0] / 0.8 + CounterDraws(11).gumbel(PLACE, np.arange(48))
    assert int(np.argmax(scores)) == expected.ids[PLACE], "the position's own noise"
    second, best = np.sort(scores)[-2:]
    assert found.margin == pytest.approx(best - second)


@pytest.mark.parametrize("acceptance", ["exact", "adasd-anchored"])
@pytest.mark.parametrize("seed", range(2))
def test_seeded_draws_part_by_their_uniforms(acceptance: str, seed: int) -> None:
    expected = stored(SamplingParams(temperature=1.0, seed=seed), acceptance)
    for place in range(len(PROMPT), len(expected.ids), 3):
        found = divergence(MODELS, expected, [*expected.ids[:place], 47])
        assert found is None or 0 < found.margin < 1


def test_an_end_is_a_divergence_and_equality_none() -> None:
    expected = stored(SamplingParams(temperature=0.0), "exact")
    assert divergence(MODELS, expected, expected.ids) is None
    found = divergence(MODELS, expected, expected.ids[:-2])
    assert found is not None
    assert (found.position, found.seen) == (len(expected.ids) - 2 - len(PROMPT), None)
