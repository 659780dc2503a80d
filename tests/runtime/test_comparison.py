"""Two runtimes of one model are found to be one, and two models are not."""

from __future__ import annotations

import re
from typing import Any

import pytest

from adasd.runtime.comparison import RULES, Comparison
from adasd.runtime.loading import RuntimeOptions, load_model
from adasd.runtime.replica import Replica
from services.verifier.compare import report

TARGET = "toy:seed=1,vocab=64,sharpness=2,context=200"
PROMPTS = [[number + 1, 5, 6, 7] for number in range(2 * len(RULES))]


def comparison(other: str) -> Comparison:
    draft, left, right = (
        load_model(spec, "target", RuntimeOptions()) for spec in (TARGET + ",mix=0.3,stranger=2", TARGET, other)
    )
    return Comparison(Replica(*draft), left, right)


def test_a_model_is_itself(capsys: pytest.CaptureFixture[str]) -> None:
    found = list(comparison(TARGET).texts(PROMPTS, 6))
    assert {(one.acceptance, one.temperature) for one in found} == set(RULES)
    assert [(one.divergence, one.logit_error, one.rounds) for one in found] == [(None, 0.0, 6)] * len(PROMPTS)
    assert report(iter(found), 2, 1e-5) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert re.match(r"2 ranks, 8 texts, 48 rounds, \d+ tokens: logits of up to", last)
    assert last.endswith("0 texts part, 0 by more than rounding")


@pytest.mark.parametrize("change", [",mix=0.05,stranger=9", ",mix=0.5,stranger=9"])
def test_another_model_is_found_out(change: str, capsys: pytest.CaptureFixture[str]) -> None:
    found: list[Any] = list(comparison(TARGET + change).texts(PROMPTS, 6))
    parted = [one.divergence for one in found if one.divergence is not None]
    assert {one.decided for one in parted} <= {"logits", "scores", "acceptance", "emission"}
    assert report(iter(found), 2, 1e-5) == 1
    assert capsys.readouterr().out.count("parts in round") == len(parted) > 0


def test_a_decision_that_rounding_does_not_explain_is_amiss() -> None:
    """Even where the logits are within the tolerance."""
    (found,) = comparison(TARGET + ",mix=0.5,stranger=9").texts(PROMPTS[:1], 6)
    assert found.divergence is not None
    assert report(iter([found]), 2, 1e9) == int(found.divergence.margin > 10 * found.logit_error)
