"""Whole messages for tests, and hypothesis strategies of them."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from hypothesis import strategies as st

from adasd.core.context import context_hash
from adasd.core.copying import copying_for
from adasd.core.costs import Constant, CostProfile
from adasd.core.course import Course
from adasd.core.grammar import Grammar
from adasd.core.marginal import Marginal
from adasd.core.messages import (
    MAX_ROUNDS,
    ContextDelta,
    DraftReply,
    DraftRequest,
    Judged,
    ModelInfo,
    Timing,
    VerifyReply,
    VerifyRequest,
)
from adasd.core.rows import PointRow, sparse_row
from adasd.core.stopping import AdaSDStopping, Fixed
from adasd.core.types import PLAIN, Draft, DraftPlan, Processing, Row, SamplingParams
from adasd.core.verdicts import Emission, Judgement, TokenLogprobs, Verdict
from adasd.core.worth import ENTROPY_NODES, Worth

INFO = ModelInfo("toy", 257, 512, (0, 3), "vocabulary", "weights", 200)

words = st.integers(0, 2**32 - 1)
unit = st.floats(0.0, 1.0)


@st.composite
def contexts(draw: st.DrawFn) -> ContextDelta:
    ids = draw(st.lists(words, max_size=30))
    start = draw(st.integers(0, 2**31))
    session = draw(st.binary(min_size=16, max_size=16))
    return ContextDelta(session, start + len(ids), draw(words), start, ids, context_hash(ids))


biases = st.dictionaries(words, st.floats(-100.0, 100.0), max_size=5)
processings = st.builds(
    Processing,
    logit_bias=biases.map(lambda entries: tuple(sorted(entries.items()))),
    repetition_penalty=st.floats(1e-6, 1e6),
    frequency_penalty=st.floats(-2.0, 2.0),
    presence_penalty=st.floats(-2.0, 2.0),
    min_tokens=words,
    eos_ids=st.lists(words, max_size=3, unique=True).map(tuple),
)
grammars = st.builds(Grammar, st.sampled_from(["json_schema", "regex", "lark"]), st.text())
followed = st.builds(Processing, eos_ids=st.just((3, 7)), grammar=grammars)
samplings = st.builds(
    SamplingParams,
    temperature=st.floats(0.0, 100.0),
    top_k=st.integers(0, 1000),
    top_p=st.floats(0.01, 1.0),
    min_p=unit,
    seed=st.integers(0, 2**64 - 1),
    choice=words,
    processing=st.just(PLAIN) | processings | followed,
    ignore_eos=st.booleans(),
)
seconds = st.floats(0.0, 1e3)
profiles = st.builds(
    CostProfile,
    st.text(),
    seconds,
    seconds,
    st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=9).map(lambda table: tuple(sorted(table))),
    seconds,
)
nodes = st.lists(unit, min_size=ENTROPY_NODES, max_size=ENTROPY_NODES).map(tuple)
worths = st.builds(Worth, nodes, unit, st.floats(0.0, 1e6), profiles)
plans = st.builds(
    DraftPlan,
    st.integers(0, 64),
    st.floats(0.0, 20.0) | st.just(math.inf),
    st.booleans(),
    st.none() | worths,
)
rows: st.SearchStrategy[Row] = words.map(PointRow) | st.lists(words, min_size=2, max_size=9, unique=True).map(
    lambda ids: sparse_row(np.array(ids, dtype=np.int64), np.full(len(ids), 1 / len(ids)))
)


@st.composite
def drafts(draw: st.DrawFn) -> Draft:
    count = draw(st.integers(0, 5))
    ids = draw(st.lists(words, min_size=count, max_size=count))
    entropies = draw(st.lists(st.floats(0.0, 20.0), min_size=count, max_size=count))
    return Draft(tuple(ids), tuple(entropies), tuple(draw(st.lists(rows, min_size=count, max_size=count))))


judgements = st.builds(Judgement, unit, st.booleans(), st.booleans(), unit, st.booleans())
alternatives = st.lists(st.tuples(words, st.floats(-1e4, 0.0)), max_size=20)
entries = st.builds(
    lambda logprob, listed: TokenLogprobs(logprob, tuple(i for i, _ in listed), tuple(log for _, log in listed)),
    st.floats(-1e4, 0.0),
    alternatives,
)


@st.composite
def verdicts(draw: st.DrawFn) -> Verdict:
    accepted = draw(st.integers(0, 5))
    emission: Emission = draw(st.sampled_from(("none", "recovered", "bonus")))
    emitted = 0 if emission == "none" else 1
    tokens = draw(st.lists(words, min_size=accepted + emitted, max_size=accepted + emitted))
    judgements = draw(
        st.lists(st.builds(Judgement, unit, st.booleans(), st.booleans(), unit, st.booleans()), max_size=6)
    )
    told = len(tokens) * draw(st.booleans())
    logprobs = draw(st.lists(entries, min_size=told, max_size=told))
    return Verdict(tuple(tokens), accepted, emission, tuple(judgements), tuple(logprobs))


infos = st.builds(
    ModelInfo, st.text(), words, words, st.lists(words, max_size=4).map(tuple), st.text(), st.text(), words
)
draft_requests = st.builds(DraftRequest, contexts(), samplings, plans, words)
draft_replies = st.builds(DraftReply, words, words, drafts())
told_to_verify = (
    st.sampled_from(("exact", "")),
    st.binary(),
    words,
    st.none() | st.integers(0, 20),
    st.sampled_from(("unknown", "plain", "none")),
)
runs_asked = st.builds(
    VerifyRequest, contexts(), samplings, st.just(Draft()), *told_to_verify, st.integers(1, MAX_ROUNDS)
)
tables = st.lists(st.floats(1e-6, 1e3), max_size=9).map(lambda table: tuple(sorted(table)))
copied_costs = st.builds(
    lambda costs, copied, reading, joined: replace(costs, copied=copied, reading=reading, joined=joined),
    profiles,
    tables,
    unit,
    tables,
)
marginal = st.builds(Marginal, st.integers(1, 64), st.builds(Constant, copied_costs))
stopping = st.builds(Fixed, st.integers(1, 64)) | st.builds(AdaSDStopping, st.integers(1, 64)) | marginal


@st.composite
def courses(draw: st.DrawFn, coupled: bool, rounds: int) -> Course:
    rule, eos_ids = draw(stopping), draw(st.frozensets(words, max_size=3))
    copying = copying_for(rule, eos_ids, draw(st.booleans()))
    return Course(rule, draw(words), coupled, copying, rounds)


@st.composite
def plans_asked(draw: st.DrawFn) -> VerifyRequest:
    plan, rounds = draw(plans), draw(st.integers(0, MAX_ROUNDS))
    course = draw(courses(plan.coupled, rounds)) if rounds else None
    asked = [draw(one) for one in told_to_verify]
    return VerifyRequest(draw(contexts()), draw(samplings), Draft(), *asked, plan=plan, course=course)


blocks_asked = st.builds(VerifyRequest, contexts(), samplings, drafts(), *told_to_verify)
verify_requests = blocks_asked | runs_asked | plans_asked()
timings = st.builds(Timing, words, unit, unit, unit, words, words, unit)
runs = st.lists(words, min_size=2, max_size=9).map(lambda ids: Verdict(tuple(ids), 0, "bonus"))
told = st.builds(
    lambda draft, copied: replace(draft, rows=(), copied=copied and len(draft) > 0), drafts(), st.booleans()
)
further = st.lists(st.builds(Judged, told, verdicts()), max_size=3).map(tuple)
verify_replies = st.builds(VerifyReply, words, words, verdicts() | runs, timings, told, further=further)
