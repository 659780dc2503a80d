"""The loop: what goes on beside what, and what becomes of the block under way when something ends the text."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field

import pytest

from adasd.core.adaptive import AcceptanceState
from adasd.core.context import Context
from adasd.core.decoding import Controller, Round, TokenBoundary
from adasd.core.errors import Conflict, InvalidDraft, ServiceUnavailable
from adasd.core.messages import Timing
from adasd.core.progress import GenerationState
from adasd.core.stopping import stopping_rule
from adasd.core.types import Draft, DraftPlan
from adasd.core.verdicts import Verdict
from adasd.core.verification import verification
from adasd.state.base import Commit, Ownership
from services.gateway.generation import generate

PROMPT = [5, 6]
OWNERSHIP = Ownership(b"s" * 16, "me", 1)


@dataclass
class Peers:
    """Drafter, verifier and store at once. The n-th token is n. log: what was asked of them, and how it ended.

    failures: by round, of the verifier. hold: what verdicts from the second on wait for. stored: likewise, commits.
    """

    failures: dict[int, BaseException] = field(default_factory=dict)
    refuses: dict[int, BaseException] = field(default_factory=dict)
    hold: asyncio.Event = field(default_factory=asyncio.Event)
    stored: asyncio.Event = field(default_factory=asyncio.Event)
    log: list[str] = field(default_factory=list)
    timing = drafting = Timing()
    drafts = False

    def prefill(self, context: Context) -> None: ...

    async def draft(
        self, context: Context, plan: DraftPlan, state: AcceptanceState, round_number: int
    ) -> tuple[Draft, Verdict]:
        raise NotImplementedError

    async def propose(self, context: Context, plan: DraftPlan, round_number: int) -> Draft:
        return Draft()

    async def verify(
        self, context: Context, draft: Draft, state: AcceptanceState, round_number: int, rounds: int = 1
    ) -> Verdict:
        self.log.append(f"verify {round_number} after {context.base}")
        try:
            if round_number:
                await self.hold.wait()
            if round_number in self.failures:
                raise self.failures.pop(round_number)
        except asyncio.CancelledError:
            self.log.append(f"dropped {round_number}")
            raise
        return Verdict((context.generated + 1,), 0, "bonus", ())

    async def commit(self, commit: Commit) -> int:
        self.log.append(f"commit {commit.round_number}")
        await self.stored.wait()
        if commit.round_number in self.refuses:
            raise self.refuses[commit.round_number]
        return 0

    async def close(self) -> None: ...


def rounds(peers: Peers, tokens: int = 3) -> AsyncGenerator[Round, None]:
    controller = Controller(stopping_rule("fixed", 2), verification("exact"), len(PROMPT) + tokens)
    boundary, context = TokenBoundary((), tokens), Context(PROMPT)
    return generate(context, GenerationState(), controller, boundary, peers, peers, peers, OWNERSHIP)


async def logged(peers: Peers, line: str) -> None:
    for _ in range(1000):
        await asyncio.sleep(0)
        if line in peers.log:
            return
    raise AssertionError(f"never: {line}")


async def test_the_next_block_waits_for_neither_the_store_nor_the_reader() -> None:
    peers = Peers()
    peers.hold.set()
    async with aclosing(rounds(peers)) as text:
        first = asyncio.ensure_future(anext(text))
        await logged(peers, "verify 1 after 3")
        assert not first.done(), "nothing is shown before it is stored"
        peers.stored.set()
        assert (await first).verdict.tokens == (1,)
        for _ in range(20):
            await asyncio.sleep(0)
        assert "verify 2 after 4" not in peers.log, "one block ahead, no more"
        assert [one.verdict.tokens async for one in text] == [(2,), (3,)]
    assert [line for line in peers.log if line.startswith("commit")] == ["commit 0", "commit 1", "commit 2"]
    assert not any(line.startswith("verify 3") for line in peers.log), "the text has ended"


async def test_a_commit_that_fails_drops_the_block_under_way() -> None:
    peers = Peers(refuses={0: Conflict("it was taken over")})
    first = asyncio.ensure_future(anext(rounds(peers)))
    await logged(peers, "verify 1 after 3")
    peers.stored.set()
    with pytest.raises(Conflict):
        await first
    assert peers.log[-1] == "dropped 1"
    assert "commit 1" not in peers.log


async def test_a_reader_who_leaves_ends_the_block_under_way() -> None:
    peers = Peers()
    peers.stored.set()
    text = rounds(peers)
    await anext(text)
    await logged(peers, "verify 1 after 3")
    await text.aclose()
    assert peers.log[-1] == "dropped 1"


async def test_an_error_of_the_next_block_costs_nothing_that_was_committed() -> None:
    peers = Peers(failures={1: ServiceUnavailable("gone")})
    peers.hold.set()
    peers.stored.set()
    text = rounds(peers)
    first = asyncio.ensure_future(anext(text))
    await logged(peers, "verify 1 after 3")  # and it fails at once
    assert (await first).verdict.tokens == (1,)
    with pytest.raises(ServiceUnavailable):
        await anext(text)


async def test_a_block_that_may_not_be_sent_costs_its_round_the_candidates_only() -> None:
    peers = Peers(failures={1: InvalidDraft("a row that is none")})
    peers.hold.set()
    peers.stored.set()
    assert [one.verdict.tokens async for one in rounds(peers)] == [(1,), (2,), (3,)]
    assert peers.log.count("verify 1 after 3") == 2
