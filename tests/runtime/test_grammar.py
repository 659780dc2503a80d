"""Texts of a grammar by two whole models that speculate, and what becomes of a session's place in it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from adasd.core.adaptive import AcceptanceState
from adasd.core.context import Context
from adasd.core.decoding import Round
from adasd.core.errors import GrammarFault, InvalidRequest
from adasd.core.grammar import Grammar, Grammars
from adasd.core.host import HostKernels
from adasd.core.messages import DraftRequest, VerifyRequest
from adasd.core.rows import PointRow
from adasd.core.stopping import Fixed, Off
from adasd.core.types import Draft, DraftPlan, Processing, SamplingParams
from adasd.core.verification import VERIFICATIONS
from adasd.kernels.device import DeviceKernels
from adasd.kernels.positions import Columns
from adasd.runtime.decoder import Decoder
from adasd.runtime.loading import load_grammars
from adasd.runtime.local import LocalPair, whole
from adasd.runtime.options import RuntimeOptions
from adasd.runtime.ragged import RaggedRuntime
from adasd.runtime.replica import Replica
from adasd.runtime.toy import ToyRuntime, ToySpec
from adasd.runtime.toy_tokenizer import END_ID, toy_tokenizer
from tests.core.listed import ListedGrammars
from tests.runtime.models import CONTEXT, VOCABULARY, info, model, ragged

SPEC = "toy:vocab=300"
PROMPT = [ord("h") + 1, ord("i") + 1]
TOKENIZER = toy_tokenizer(300)
ANSWER = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 5}, "sure": {"type": "boolean"}},
    "required": ["city", "sure"],
    "additionalProperties": False,
}
JSON = Grammar("json_schema", json.dumps(ANSWER))
LETTERS = Grammar("regex", "([ab]{1,3},){2,6}")


def toys(grammars: Grammars | None = None) -> LocalPair:
    known = grammars or load_grammars(SPEC, RuntimeOptions())
    draft, target = (
        Replica(ToyRuntime(ToySpec(1, 300, mix=mix, stranger=2)), HostKernels(), None, known) for mix in (0.3, 0.0)
    )
    return LocalPair(draft, target)


def sampling(grammar: Grammar = LETTERS, seed: int = 0, **fields: Any) -> SamplingParams:
    return SamplingParams(seed=seed, processing=Processing(eos_ids=(END_ID,), grammar=grammar), **fields)


def text(rounds: Iterator[Round]) -> list[int]:
    return [token for one in rounds for token in one.verdict.tokens]


@pytest.mark.parametrize("acceptance", VERIFICATIONS)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_every_rule_gives_texts_of_the_grammar(acceptance: str, temperature: float) -> None:
    for seed in range(4):
        for grammar in (JSON, LETTERS):
            asked = sampling(grammar, seed, temperature=temperature)
            rounds = list(toys().generate(PROMPT, asked, Fixed(4), acceptance, 120))
            assert rounds[-1].state.finish_reason == "stop"
            found = TOKENIZER.decode(text(iter(rounds)))
            if grammar is JSON:
                assert json.loads(found).keys() == {"city", "sure"}
            else:
                assert re.fullmatch(grammar.source, found)


@pytest.mark.parametrize("grammar", [JSON, LETTERS])
def test_coupled_text_does_not_depend_on_what_is_drafted(grammar: Grammar) -> None:
    for seed in range(3):
        asked = sampling(grammar, seed)
        texts = [text(toys().generate(PROMPT, asked, rule, "coupled", 90)) for rule in (Off(), Fixed(1), Fixed(6))]
        assert texts[0] == texts[1] == texts[2]


def test_an_own_draft_is_accepted_whole() -> None:
    """p and q are masked alike, at every position of a block."""
    target = toys().target
    rounds = list(LocalPair(target, target).generate(PROMPT, sampling(JSON, 3), Fixed(4), "exact", 90))
    assert sum(len(one.draft) for one in rounds) > 20
    assert all(one.verdict.accepted == len(one.draft) for one in rounds)


def test_forced_tokens_are_certain_candidates() -> None:
    fixed = Grammar("lark", 'start: "one and the same text whatever the models say"')
    rounds = list(toys().generate(PROMPT, sampling(fixed), Fixed(8), "exact", 90))
    assert all(one.verdict.accepted == len(one.draft) for one in rounds)
    assert all(isinstance(row, PointRow) for one in rounds for row in one.draft.rows)


def test_the_length_may_cut_a_text_short() -> None:
    rounds = list(toys().generate(PROMPT, sampling(JSON), Fixed(4), "exact", 7))
    assert rounds[-1].state.finish_reason == "length"
    assert TOKENIZER.decode(text(iter(rounds))).startswith('{"city"')


def test_a_trimmed_head_without_the_tokens_that_may_come_drafts_up_to_there() -> None:
    """The student's head lacks every second id: its blocks end before one of those, and the text is the target's."""
    student = RaggedRuntime(Decoder(model("student"), CONTEXT, "float32"), info())
    assert student.columns is not None
    known = student.columns.numpy()
    missing = np.setdiff1d(np.arange(1, VOCABULARY), known)[:2].tolist()
    texts = {(*known[1:4].tolist(), lacking, *known[4:8].tolist()) for lacking in missing}
    grammars = ListedGrammars(texts, VOCABULARY)
    draft = Replica(student, DeviceKernels(16, Columns(known, VOCABULARY)), None, grammars)
    pair = LocalPair(draft, Replica(ragged("llama"), DeviceKernels(), None, grammars))
    rounds = list(pair.generate([3, 1, 4], sampling(), Fixed(6), "exact", 20))
    assert tuple(text(iter(rounds))[:-1]) in texts
    assert [len(one.draft) for one in rounds][1] == 2, "the first token is the prefill's, the fourth no draft of this"
    assert all(one.verdict.accepted == len(one.draft) for one in rounds)


def test_a_session_keeps_its_place() -> None:
    """A round moves the matcher by its block, however long the text is."""
    grammars = ListedGrammars({(2,) * 200}, 300)
    rounds = list(toys(grammars).generate(PROMPT, sampling(), Fixed(3), "exact", 220))
    assert len(grammars.begun) == 2, "one a side"
    assert all(matcher.moves < 200 + 12 * len(rounds) for matcher in grammars.begun)


def test_another_replica_goes_on_from_the_committed_tokens() -> None:
    """Sampled with the same seed the rest is what it would have been."""
    asked, rule = sampling(JSON, 5), Fixed(3)
    expected = text(toys().generate(PROMPT, asked, rule, "coupled", 90))
    for length in range(1, len(expected) - 1, 3):
        context = Context(PROMPT)
        context.extend(expected[:length])
        pair, state = toys(), AcceptanceState().pack()
        draft = pair.draft.propose(DraftRequest(whole(b"s" * 16, context), asked, DraftPlan(3, coupled=True), 0))
        asking = VerifyRequest(whole(b"s" * 16, context), asked, draft, "coupled", state, 0)
        tokens = list(pair.target.verify(asking).tokens)
        rest = expected[length:]
        assert tokens[: len(rest)] == rest[: len(tokens)]


def test_what_cannot_go_on_fails_alone() -> None:
    """A verifier says so, a drafter drafts nothing; the session, and others, may go on."""
    pair, context = toys(), Context(PROMPT)
    context.extend(TOKENIZER.encode("x").ids)
    request = VerifyRequest(whole(b"s" * 16, context), sampling(), Draft(), "exact", AcceptanceState().pack(), 0)
    with pytest.raises(GrammarFault, match="does not follow"):
        pair.target.verify(request)
    assert pair.draft.propose(DraftRequest(whole(b"s" * 16, context), sampling(), DraftPlan(3), 0)) == Draft()
    context = Context(PROMPT)
    request = VerifyRequest(whole(b"s" * 16, context), sampling(), Draft(), "exact", AcceptanceState().pack(), 0)
    assert TOKENIZER.decode(list(pair.target.verify(request).tokens)) in ("a", "b")
    assert len(pair.draft.propose(DraftRequest(whole(b"s" * 16, context), sampling(), DraftPlan(3), 0))) == 3


def test_refused_where_no_grammars_are_known_and_where_it_is_none() -> None:
    context = whole(b"s" * 16, Context(PROMPT))
    bare = Replica(ToyRuntime(ToySpec(1, 300)), HostKernels())
    for replica, grammar in ((bare, LETTERS), (toys().target, Grammar("regex", "("))):
        with pytest.raises(InvalidRequest):
            replica.verify(VerifyRequest(context, sampling(grammar), Draft(), "exact", AcceptanceState().pack(), 0))
