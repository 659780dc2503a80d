"""The loop: what goes on beside what, and what becomes of the block under way when something ends the text."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

import pytest

from adasd.core.adaptive import AcceptanceState
from adasd.core.context import Context
from adasd.core.costs import NOMINAL, Constant
from adasd.core.course import Course
from adasd.core.decoding import Controller, OneByOne, Runs, TokenBoundary
from adasd.core.errors import Conflict, InvalidDraft, ServiceUnavailable
from adasd.core.marginal import Marginal
from adasd.core.messages import Judged, Timing
from adasd.core.progress import GenerationState
from adasd.core.stopping import AdaSDStopping, Fixed, stopping_rule
from adasd.core.types import Draft, DraftPlan
from adasd.core.verdicts import Judgement, Verdict
from adasd.core.verification import verification
from adasd.state.base import Commit, Ownership
from services.gateway.generation import generate
from services.gateway.rounds import Rounds

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
    drafts: bool = False
    timing = drafting = Timing()

    def prefill(self, context: Context) -> None: ...

    async def draft(
        self, context: Context, plan: DraftPlan, state: AcceptanceState, round_number: int, course: Course | None = None
    ) -> Sequence[Judged]:
        """One candidate a round, which stands."""
        self.log.append(f"draft {round_number} after {context.base}")
        rounds = course.rounds if course else 1
        if round_number in self.failures:
            raise self.failures.pop(round_number)
        begin = context.generated + 1
        tokens = [(begin + 2 * number, begin + 2 * number + 1) for number in range(rounds)]
        told = Judgement(0.5, True, True)
        return [Judged(Draft(pair[:1], (1.0,)), Verdict(pair, 1, "bonus", (told,))) for pair in tokens]

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
        more = f" and {commit.rounds - 1} more" if commit.rounds > 1 else ""
        self.log.append(f"commit {commit.round_number}{more}")
        await self.stored.wait()
        if commit.round_number in self.refuses:
            raise self.refuses[commit.round_number]
        return 0

    async def close(self) -> None: ...


class Three(OneByOne):
    def drafted(self) -> int:
        return 3


def rounds(peers: Peers, tokens: int = 3) -> AsyncGenerator[Rounds, None]:
    controller = Controller(stopping_rule("fixed", 2), verification("exact"), len(PROMPT) + tokens, runs=Three())
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
        assert (await first).tokens == (1,)
        for _ in range(20):
            await asyncio.sleep(0)
        assert "verify 2 after 4" not in peers.log, "one block ahead, no more"
        assert [one.tokens async for one in text] == [(2,), (3,)]
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
    assert (await first).tokens == (1,)
    with pytest.raises(ServiceUnavailable):
        await anext(text)


async def test_a_block_that_may_not_be_sent_costs_its_round_the_candidates_only() -> None:
    peers = Peers(failures={1: InvalidDraft("a row that is none")})
    peers.hold.set()
    peers.stored.set()
    assert [one.tokens async for one in rounds(peers)] == [(1,), (2,), (3,)]
    assert peers.log.count("verify 1 after 3") == 2


async def test_rounds_that_one_message_brought_are_committed_and_told_together() -> None:
    peers = Peers(drafts=True)
    peers.hold.set()
    peers.stored.set()
    brought = [one async for one in rounds(peers, tokens=9)]
    assert [one.tokens for one in brought] == [(1,), (2, 3, 4, 5, 6, 7), (8, 9)]
    assert [(one.number, one.count, one.drafted, one.accepted) for one in brought] == [
        (0, 1, 0, 0),
        (1, 3, 3, 3),
        (4, 1, 1, 1),
    ]
    assert [line for line in peers.log if not line.startswith("verify")] == [
        "draft 1 after 3",
        "commit 0",
        "draft 4 after 9",
        "commit 1 and 2 more",
        "commit 4",
    ]
    assert brought[-1].state.counters.rounds == 5
    assert [one.finish_reason for one in (brought[1].state, brought[2].state)] == [None, "length"]


async def test_what_comes_after_the_end_of_a_text_is_dropped() -> None:
    peers = Peers(drafts=True)
    peers.hold.set()
    peers.stored.set()
    *_, last = [one async for one in rounds(peers, tokens=4)]
    assert last.tokens == (2, 3, 4)
    assert [(len(step.draft), step.verdict.emission) for step in last.each] == [(1, "bonus"), (1, "none")]
    assert peers.log[-1] == "commit 1 and 1 more"


def test_a_rule_that_drafts_goes_on_by_itself_with_the_costs_of_now() -> None:
    def course(rule: str, runs: Runs) -> Course | None:
        return Controller(stopping_rule(rule, None), verification("coupled"), 99, runs=runs).course()

    assert course("adasd", Three()) == Course(AdaSDStopping(), 99, coupled=True, rounds=3)
    assert course("fixed", Three()) == Course(Fixed(), 99, coupled=True, rounds=3)
    assert course("marginal", Three()) == Course(Marginal(20, Constant(NOMINAL)), 99, coupled=True, rounds=3)
    assert course("off", Three()) is None
    assert course("adasd", OneByOne()) is None


async def test_a_drafter_beside_that_fails_costs_nobody_a_round() -> None:
    peers = Peers(drafts=True, failures={1: InvalidDraft("none")})
    peers.hold.set()
    peers.stored.set()
    brought = [one async for one in rounds(peers, tokens=4)]
    assert [one.tokens for one in brought] == [(1,), (2,), (3, 4)]
