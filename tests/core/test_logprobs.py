"""Log-probabilities of tokens: raw logits, temperature 1, the likeliest ids in order."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.special import log_softmax as reference

from adasd.core.errors import InvalidRequest
from adasd.core.logprobs import LEAST_LOGPROB, log_softmax, token_logprobs
from adasd.core.messages import ContextDelta, VerifyRequest
from adasd.core.types import Draft, SamplingParams
from adasd.core.verdicts import TokenLogprobs, Verdict

INF = math.inf


def test_log_softmax_is_that_of_scipy() -> None:
    logits = np.random.default_rng(1).normal(0.0, 9.0, (3, 50))
    np.testing.assert_allclose(log_softmax(logits), reference(logits, axis=-1), rtol=1e-12)
    assert log_softmax(np.array([INF, 1.0, INF])).tolist() == pytest.approx([-math.log(2), -INF, -math.log(2)])


def test_the_likeliest_come_first_and_equals_by_id() -> None:
    logits = np.log(np.array([[1, 4, 1, 2, 1, 0.0]]) + 0.0, where=[[True] * 5 + [False]], out=np.full((1, 6), -INF))
    (entry,) = token_logprobs(logits, [0], 3)
    assert entry.top_ids == (1, 3, 0)
    assert (entry.logprob, *entry.top) == pytest.approx([math.log(share / 9) for share in (1, 4, 2, 1)])
    assert entry.top[2] == entry.logprob
    assert token_logprobs(logits, [3], 0) == [TokenLogprobs(pytest.approx(math.log(2 / 9)))]  # type: ignore[arg-type]


def test_what_has_no_probability_is_no_alternative() -> None:
    logits = np.array([[0.0, -INF, -INF]])
    assert token_logprobs(logits, [1], 3) == [TokenLogprobs(LEAST_LOGPROB, (0,), (0.0,))]


def test_a_verdict_that_is_cut_keeps_the_entries_of_its_tokens() -> None:
    entries = tuple(TokenLogprobs(-float(i)) for i in range(3))
    assert Verdict((1, 2, 3), 2, "bonus", logprobs=entries).cut(2) == Verdict((1, 2), 2, "none", logprobs=entries[:2])


@pytest.mark.parametrize("top", [-1, 21])
def test_too_many_alternatives_are_refused(top: int) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        VerifyRequest(ContextDelta(b"", 1, 1, 0, [1], b""), SamplingParams(), Draft(), "exact", b"", 0, top)
    assert refusal.value.param == "top_logprobs"
