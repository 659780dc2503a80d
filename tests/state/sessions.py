"""Sessions to store: new records, their rounds, and what a driver may look at behind the store's back."""

from __future__ import annotations

import secrets
from dataclasses import replace
from random import Random
from typing import Any

from adasd.core.adaptive import AcceptanceState
from adasd.core.types import Draft
from adasd.core.verdicts import Judgement, Verdict
from adasd.state.base import Commit, SessionRecord

PROMPT = (11, 12, 13, 4_000_000_000)
EMPTY_STATE = AcceptanceState().pack()


def new_record(owner: str = "gateway-a", epoch: int = 1) -> SessionRecord:
    return SessionRecord(
        session=secrets.token_bytes(16),
        owner=owner,
        epoch=epoch,
        prompt=PROMPT,
        parameters={"temperature": 0.7, "seed": 2**64 - 1, "stop": ["\n\n"], "acceptance": {"rule": "exact"}},
        models={"target": "t0", "draft": "d0", "vocabulary": "v0"},
    )


def a_round(record: SessionRecord, round_number: int, /, **changes: Any) -> Commit:
    """The commit of one round; by default a small one whose tokens tell the round."""
    commit = Commit(
        session=record.session,
        owner=record.owner,
        epoch=record.epoch,
        round_number=round_number,
        tokens=(1000 + round_number, 7),
        patches=((4, bytes([round_number % 256] * 4)),),
        counters={"rounds": round_number + 1, "loss_total": 0.1 * round_number},
    )
    return replace(commit, **changes)


def random_verdict(random: Random) -> tuple[Draft, Verdict]:
    """A block of up to eight candidates, judged up to its first rejection."""
    size = random.randint(0, 8)
    block = Draft(tuple(range(size)), tuple(random.uniform(0, 9) for _ in range(size)))
    accepted = random.randint(0, size)
    judgements = [Judgement(random.random(), exact=True, accepted=True) for _ in range(accepted)]
    if accepted < size:
        judgements.append(Judgement(random.random(), exact=False, accepted=False))
    tokens = tuple(random.randrange(2**32) for _ in range(accepted + 1))
    return block, Verdict(tokens, accepted, "recovered" if accepted < size else "bonus", tuple(judgements))
