"""Processing and log-probabilities on the device: numpy's bits, transformers' numbers, whatever is in the batch."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import (
    MinNewTokensLengthLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
)

from adasd.core.backend import sound
from adasd.core.draws import CounterDraws, DrawKey, Purpose
from adasd.core.grammar import Grammar, Progress
from adasd.core.processing import Edits, Processor, process
from adasd.core.types import FloatArray, Processing, SamplingParams
from adasd.kernels import processing as device
from adasd.kernels.device import DeviceKernels
from adasd.kernels.positions import Columns
from tests.core.listed import Listed
from tests.kernels.backends import DEVICE, HOST, Backend, block

VOCABULARY = 300
PROMPT, GENERATED, CANDIDATES = [5, 9, 9, 250], [9, 11, 5, 7], [11, 3, 299]
PROCESSINGS = (
    Processing(repetition_penalty=1.4),
    Processing(frequency_penalty=0.7, presence_penalty=-0.3),
    Processing(((0, 3.5), (9, -100.0), (299, 7.0)), 0.8, -0.25, 0.5, 6, (3, 11)),
    Processing(min_tokens=5, eos_ids=(3,)),
)
SAMPLINGS = (
    SamplingParams(),
    SamplingParams(temperature=0.0),
    SamplingParams(0.7, top_p=0.9),
    SamplingParams(top_k=40, min_p=0.01),
)
KINDS = ("plain", "greedy", "top_p", "top_k")


GRAMMAR = Grammar("regex", "of TEXTS")
TEXTS = [(*GENERATED, *block) for block in itertools.product((11, 8, 290), (3, 9, 280), (299, 5), (7, 250))]
MASKED = (
    Processing(eos_ids=(4,), grammar=GRAMMAR),
    Processing(((0, 3.5), (11, -100.0), (250, 7.0)), 1.3, 0.25, -0.5, 0, (4, 8), GRAMMAR),
)


def edits_of(processing: Processing, rows: int) -> Edits | None:
    progress = Progress(Listed(TEXTS, 295)) if processing.grammar else None
    return Processor(processing, PROMPT + GENERATED, len(PROMPT), progress).edits(CANDIDATES, rows)


def quantised(seed: int, rows: int) -> FloatArray:
    """Logits with many equals, which processing breaks up and makes anew."""
    return np.round(np.random.default_rng(seed).normal(0.0, 3.0, (rows, VOCABULARY)) * 4) / 4


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_device_gives_the_hosts_bits(dtype: torch.dtype) -> None:
    """Several blocks in one copy; -inf, +inf and ids past the width among them."""
    blocks = [quantised(i, rows) for i, rows in enumerate((4, 1, 3, 4, 2, 4))]
    blocks[0][1, [3, 9]], blocks[2][0, 5] = -math.inf, math.inf
    processings = (*PROCESSINGS, *MASKED)
    edits = [edit for i, rows in enumerate(blocks) if (edit := edits_of(processings[i], len(rows))) is not None]
    given = [torch.from_numpy(rows[:, :260]).to(dtype) for rows in blocks]
    together = device.process(torch.cat(given), edits).numpy()
    apart = [process(rows.double().numpy(), edit) for rows, edit in zip(given, edits, strict=True)]
    np.testing.assert_array_equal(together, np.concatenate(apart))
    assert all(
        torch.equal(rows, torch.from_numpy(raw[:, :260]).to(dtype)) for rows, raw in zip(given, blocks, strict=True)
    )


def test_the_order_and_the_numbers_are_those_of_transformers() -> None:
    processing = Processing(((5, 2.5), (9, -3.0), (40, 4.0)), 1.4, min_tokens=5, eos_ids=(3, 11))
    logits = torch.from_numpy(quantised(1, 1))
    text = torch.tensor([PROMPT + GENERATED])
    expected = SequenceBiasLogitsProcessor({(token,): bias for token, bias in processing.logit_bias})(text, logits)
    expected = RepetitionPenaltyLogitsProcessor(1.4)(text, expected)
    expected = MinNewTokensLengthLogitsProcessor(len(PROMPT), 5, [3, 11])(text, expected)
    edits = Processor(processing, PROMPT + GENERATED, len(PROMPT)).edits(())
    assert edits is not None
    torch.testing.assert_close(device.process(logits, [edits]), expected, rtol=1e-12, atol=0.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("sampling", SAMPLINGS, ids=KINDS)
def test_processed_blocks_are_judged_alike_by_host_and_device(dtype: torch.dtype, sampling: SamplingParams) -> None:
    logits = quantised(2, len(CANDIDATES) + 1)
    for processing in (*PROCESSINGS, *MASKED):
        edits, last = edits_of(processing, len(logits)), edits_of(processing, 1)
        host, device = (
            (
                backend.kernels().propose(backend.logits(logits)[-1], sampling, last),
                backend.kernels().target(backend.logits(logits), sampling, edits),
            )
            for backend in (replace(HOST, dtype=dtype), replace(DEVICE, dtype=dtype))
        )
        assert device[0].entropy == pytest.approx(host[0].entropy, abs=1e-9)
        assert device[0].row is not None
        assert host[0].row is not None
        assert device[0].row.ids.tolist() == host[0].row.ids.tolist()
        draft = block([int(host[0].row.ids[0])] * 3, [host[0].row] * 3)
        for ours, theirs in zip(device[1].evidence(draft), host[1].evidence(draft), strict=True):
            assert (ours.p, ours.p_max) == (pytest.approx(theirs.p, abs=1e-9), pytest.approx(theirs.p_max, abs=1e-9))
        keys = [DrawKey(base, i, Purpose.EMIT) for i in range(4) for base in range(8)]
        emitted = [[rows.emit(key.offset, None, key, CounterDraws(5)) for key in keys] for rows in (host[1], device[1])]
        assert emitted[0] == emitted[1]
        assert list(device[1].coupled(3, CounterDraws(6))) == list(host[1].coupled(3, CounterDraws(6)))


def test_a_processed_row_does_not_depend_on_its_batch(backend: Backend) -> None:
    """Beside rows of every other kind; those without edits give what they give where nothing is edited."""
    kernels, blocks = backend.kernels(), [backend.logits(quantised(i, 4)) for i in range(6)]
    samplings = [SAMPLINGS[i % 3] for i in range(6)]
    processings = [*PROCESSINGS, *MASKED]
    edits = [None if i == 1 else edits_of(processings[i], 4) for i in range(6)]
    together = kernels.target_batch(blocks, samplings, edits)
    for i, found in enumerate(map(sound, together)):
        alone = kernels.target(blocks[i], samplings[i], edits[i])
        key = DrawKey(2, 1, Purpose.EMIT)
        assert found.emit(1, None, key, CounterDraws(1)) == alone.emit(1, None, key, CounterDraws(1))
        assert list(found.coupled(4, CounterDraws(1))) == list(alone.coupled(4, CounterDraws(1)))
        assert found.logprobs([7, 8], 4) == alone.logprobs([7, 8], 4)
    last = [None if edit is None else edits_of(processings[i], 1) for i, edit in enumerate(edits)]
    proposals = kernels.propose_batch([rows[3] for rows in blocks], samplings, last)
    for i, proposal in enumerate(map(sound, proposals)):
        alone = kernels.propose(blocks[i][3], samplings[i], last[i])
        assert proposal.entropy == alone.entropy
        assert proposal.row is not None
        assert alone.row is not None
        assert proposal.row.ids.tolist() == alone.row.ids.tolist()
        assert proposal.row.weights.tolist() == alone.row.weights.tolist()


@pytest.mark.parametrize("processing", [*PROCESSINGS, MASKED[1]], ids=range(5))
def test_compact_columns_are_processed_as_the_ids_they_stand_for(processing: Processing) -> None:
    known = np.arange(1, VOCABULARY, 2, dtype=np.int64)
    compact = torch.from_numpy(quantised(5, 1)[0, known])
    scattered = torch.full((VOCABULARY,), -math.inf, dtype=torch.float64)
    scattered[known] = compact
    edits = edits_of(processing, 1)
    ours = DeviceKernels(columns=Columns(known, VOCABULARY)).propose(compact, SamplingParams(), edits)
    theirs = DeviceKernels().propose(scattered, SamplingParams(), edits)
    assert ours.row is not None
    assert theirs.row is not None
    assert ours.row.ids.tolist() == theirs.row.ids.tolist()
    assert ours.row.weights.tolist() == theirs.row.weights.tolist()


def test_bans_may_leave_a_draft_nothing(backend: Backend) -> None:
    logits = np.full(4, -math.inf)
    logits[3] = 1.0
    edits = Processor(Processing(min_tokens=1, eos_ids=(3,)), [1], 1).edits(())
    assert backend.kernels().propose(backend.logits(logits), SamplingParams(), edits) == (0.0, None)


def test_a_grammar_may_leave_a_draft_nothing_and_a_single_id_to_a_target(backend: Backend) -> None:
    """The draft's head lacks what is allowed; the rows beside it in the batch are what they are alone."""
    logits = quantised(9, 1)[0]
    bare = logits.copy()
    bare[[7, 250]] = -math.inf
    edits = edits_of(MASKED[0], 1)
    kernels, given = backend.kernels(), [backend.logits(one) for one in (bare, logits)]
    nothing, something = map(sound, kernels.propose_batch(given, [SamplingParams()] * 2, [edits] * 2))
    assert nothing == (0.0, None)
    assert something.row is not None
    assert set(something.row.ids.tolist()) <= {7, 250}
    target = kernels.target(backend.logits(quantised(9, 4)), SamplingParams(), edits_of(MASKED[0], 4))
    tokens = {target.emit(2, None, DrawKey(base, 2, Purpose.EMIT), CounterDraws(1)) for base in range(20)}
    assert tokens <= {5}, "299 is past the vocabulary of the mask"


# Log-probabilities


def told(backend: Backend, logits: FloatArray, sampling: SamplingParams, tokens: Sequence[int], top: int) -> FloatArray:
    """All numbers of some entries, padded to the longest."""
    edits = edits_of(PROCESSINGS[2], len(logits))
    entries = backend.kernels().target(backend.logits(logits), sampling, edits).logprobs(tokens, top)
    return np.array([(entry.logprob, *entry.top_ids, *entry.top) for entry in entries])


@pytest.mark.parametrize("sampling", SAMPLINGS[:3], ids=KINDS[:3])
@pytest.mark.parametrize("top", [0, 1, 5, 20])
def test_log_probabilities_are_of_the_raw_row_whatever_is_sampled_from(
    backend: Backend, sampling: SamplingParams, top: int
) -> None:
    """With equals at the end of every list: ascending ids, on both sides."""
    logits, tokens = quantised(6, 4), [4, 299, 0]
    expected = torch.from_numpy(logits).log_softmax(-1)
    found = told(backend, logits, sampling, tokens, top)
    for i, token in enumerate(tokens):
        likeliest = sorted(range(VOCABULARY), key=lambda place: (-logits[i, place], place))[:top]
        np.testing.assert_allclose(found[i], [expected[i, token], *likeliest, *expected[i, likeliest]], rtol=1e-12)


def test_infinite_logits_share_all_probability(backend: Backend) -> None:
    logits = np.array([[1.0, math.inf, -math.inf, math.inf]] * 2)
    (entry,) = backend.kernels().target(backend.logits(logits), SamplingParams()).logprobs([1], 4)
    assert entry.top_ids == (1, 3)
    assert (entry.logprob, *entry.top) == pytest.approx([-math.log(2)] * 3)
