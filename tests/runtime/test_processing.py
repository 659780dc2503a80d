"""Processed text and its log-probabilities, by two whole models that speculate: as one model alone would have it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from scipy.special import log_softmax

from adasd.core.context import context_hash
from adasd.core.decoding import Round
from adasd.core.errors import InvalidRequest
from adasd.core.host import HostKernels
from adasd.core.messages import ContextDelta, DraftRequest, VerifyRequest
from adasd.core.stopping import Fixed, Off, StoppingRule
from adasd.core.types import Draft, DraftPlan, Processing, SamplingParams
from adasd.core.verification import VERIFICATIONS
from adasd.kernels.device import DeviceKernels
from adasd.kernels.positions import Columns
from adasd.runtime.base import Segment
from adasd.runtime.decoder import Decoder
from adasd.runtime.local import LocalPair
from adasd.runtime.ragged import RaggedRuntime
from adasd.runtime.replica import Replica
from adasd.runtime.toy import ToyRuntime, ToySpec
from tests.runtime.models import CONTEXT, VOCABULARY, info, model, ragged

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]
EOS = 0
EVERYTHING = Processing(((4, 3.0), (7, -2.0)), 1.2, 0.4, 0.3, 5, (EOS,))


def toys(eos_bias: float = 2.0) -> LocalPair:
    """Two that agree about most."""
    draft, target = (
        Replica(ToyRuntime(ToySpec(1, 32, eos_bias=eos_bias, mix=mix, stranger=2)), HostKernels(None))
        for mix in (0.3, 0.0)
    )
    return LocalPair(draft, target)


def networks() -> LocalPair:
    """A target, and a draft with a trimmed head."""
    target = ragged("llama")
    student = RaggedRuntime(Decoder(model("student"), CONTEXT, "float32"), info())
    assert student.columns is not None
    kernels = DeviceKernels(16, Columns(student.columns.numpy(), VOCABULARY))
    return LocalPair(Replica(student, kernels), Replica(target, DeviceKernels()))


def text(rounds: Iterator[Round]) -> list[int]:
    return [token for one in rounds for token in one.verdict.tokens]


@pytest.mark.parametrize("stopping", [Off(), Fixed(4)], ids=repr)
def test_greedy_text_is_that_of_transformers(stopping: StoppingRule) -> None:
    processing = Processing(((7, 6.0), (11, -8.0)), 1.6, min_tokens=6, eos_ids=(EOS,))
    with torch.inference_mode():
        expected = model("llama").generate(
            torch.tensor([PROMPT]),
            attention_mask=torch.ones(1, len(PROMPT), dtype=torch.int64),
            do_sample=False,
            max_new_tokens=24,
            repetition_penalty=1.6,
            min_new_tokens=6,
            sequence_bias={(7,): 6.0, (11,): -8.0},
            eos_token_id=EOS,
            pad_token_id=EOS,
        )
    sampling = SamplingParams(temperature=0.0, processing=processing)
    plain = text(networks().generate(PROMPT, SamplingParams(temperature=0.0), stopping, "exact", 24))
    found = text(networks().generate(PROMPT, sampling, stopping, "exact", 24))
    assert found == expected[0, len(PROMPT) :].tolist()
    assert found != plain


@pytest.mark.parametrize("acceptance", VERIFICATIONS)
def test_no_end_before_min_tokens(acceptance: str) -> None:
    """With an EOS that both models would write at once; afterwards it ends the text as ever."""
    processing = Processing(min_tokens=7, eos_ids=(EOS,))
    lengths = []
    for seed in range(8):
        for stopping in (Off(), Fixed(5)):
            sampling = SamplingParams(seed=seed, processing=processing)
            found = text(toys(eos_bias=9.0).generate(PROMPT, sampling, stopping, acceptance, 40))
            assert EOS not in found[:7]
            lengths.append(len(found))
    assert min(lengths) == 8, "seven tokens and the EOS"
    assert max(lengths) < 40


def test_coupled_text_does_not_depend_on_what_is_drafted() -> None:
    for pair in (toys, networks):
        texts = [
            text(pair().generate(PROMPT, SamplingParams(0.8, seed=5, processing=EVERYTHING), stopping, "coupled", 30))
            for stopping in (Off(), Fixed(1), Fixed(6))
        ]
        assert texts[0] == texts[1] == texts[2]


def test_an_own_draft_is_accepted_whole() -> None:
    """p and q are processed alike, at every position of a block."""
    target = toys().target
    rounds = LocalPair(target, target).generate(
        PROMPT, SamplingParams(seed=3, processing=EVERYTHING, ignore_eos=True), Fixed(4), "exact", 40
    )
    drafted = [one for one in rounds if len(one.draft)]
    assert len(drafted) > 5
    assert all(one.verdict.accepted == len(one.draft) for one in drafted)


def test_an_ignored_eos_ends_neither_text_nor_block() -> None:
    sampling = SamplingParams(seed=1, ignore_eos=True)
    rounds = list(toys(eos_bias=6.0).generate(PROMPT, sampling, Fixed(4), "exact", 30))
    assert len(text(iter(rounds))) == 30
    assert any(EOS in one.draft.ids[:-1] for one in rounds)


@pytest.mark.parametrize("pair", [toys, networks])
@pytest.mark.parametrize("acceptance", ["exact", "adasd", "coupled"])
def test_every_token_has_the_targets_own_entry(pair: Any, acceptance: str) -> None:
    """Accepted, recovered and bonus tokens: of the raw logits, whatever was sampled from."""
    both = pair()
    sampling = SamplingParams(1.5, top_k=30, seed=11, processing=EVERYTHING, ignore_eos=True)
    rounds = list(both.generate(PROMPT, sampling, Fixed(3), acceptance, 40, top_logprobs=4))
    assert {one.verdict.emission for one in rounds} >= {"recovered", "bonus"}
    assert any(one.verdict.accepted for one in rounds)
    tokens = text(iter(rounds))
    expected = log_softmax(raw(both, [*PROMPT, *tokens], len(tokens)), axis=-1)
    entries = [entry for one in rounds for entry in one.verdict.logprobs]
    assert len(entries) == len(tokens)
    for row, token, entry in zip(expected, tokens, entries, strict=True):
        assert entry.logprob == pytest.approx(row[token], abs=1e-4)
        assert list(entry.top) == pytest.approx(sorted(row, reverse=True)[:4], abs=1e-4)
        assert row[list(entry.top_ids)] == pytest.approx(entry.top, abs=1e-4)


def raw(pair: LocalPair, ids: Sequence[int], rows: int) -> Any:
    """The target's logits before each of the last `rows` ids, by one pass over all of them."""
    if pair.target.info().name == "tiny":
        with torch.inference_mode():
            logits = model("llama")(input_ids=torch.tensor([ids]), use_cache=False).logits[0]
        return logits[-rows - 1 : -1].double().numpy()
    runtime = ToyRuntime(ToySpec(1, 32, eos_bias=2.0))
    return runtime.forward([Segment(b"whole", 0, list(ids[:-1]), rows)])[0]


def test_nobody_asked_and_nothing_is_told() -> None:
    rounds = toys().generate(PROMPT, SamplingParams(), Fixed(3), "exact", 10)
    assert all(one.verdict.logprobs == () for one in rounds)


def test_a_bias_on_an_id_the_target_lacks_is_refused_by_name() -> None:
    """Before any work; a draft without the id goes on without it."""
    sampling = SamplingParams(processing=Processing(((32, 1.0),)))
    context = ContextDelta(b"s" * 16, len(PROMPT), len(PROMPT), 0, PROMPT, context_hash(PROMPT))
    with pytest.raises(InvalidRequest) as refusal:
        toys().target.verify(VerifyRequest(context, sampling, Draft(), "exact", b"", 0))
    assert refusal.value.param == "logit_bias"
    assert len(toys().draft.propose(DraftRequest(context, sampling, DraftPlan(1), 0))) == 1
