"""Many owners, one session: no round is committed twice or out of order, whoever commits in between."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from random import Random

import pytest
import redis.asyncio as redis
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from adasd.core.errors import Conflict
from adasd.state.base import Commit, SessionRecord
from adasd.state.embedded import EmbeddedRedis
from adasd.state.record import SessionKeys
from adasd.state.redis_store import RedisStore
from tests.state.conftest import PATIENT, OpenStore
from tests.state.sessions import EMPTY_STATE, PROMPT, a_round, new_record

ROUNDS = 40


@dataclass
class Owner:
    """One gateway with connections of its own. `committed`: what the store told it is in."""

    name: int
    store: RedisStore
    committed: dict[int, tuple[int, ...]] = field(default_factory=dict)

    async def run(self, record: SessionRecord, raw: redis.Redis, random: Random) -> None:
        """Take the session over, commit until somebody else has done so, and again, until all rounds are in."""
        while (epoch := await self.take_over(record, raw)) is not None:
            stored = await self.store.load(record.session)
            assert stored is not None
            try:
                for round_number in range(stored.rounds, ROUNDS):
                    await asyncio.sleep(random.choice((0, 0, 0.001)))
                    await self.commit(record, epoch, round_number, random)
            except Conflict:
                await asyncio.sleep(random.uniform(0, 0.003))

    async def take_over(self, record: SessionRecord, raw: redis.Redis) -> int | None:
        """What a take-over does to the record: a new owner under a higher epoch, at once. None at the end."""
        meta = SessionKeys.of(record.session).meta
        if int(await raw.hget(meta, "round") or 0) >= ROUNDS:
            return None
        script = "redis.call('HSET', KEYS[1], 'owner', ARGV[1]); return redis.call('HINCRBY', KEYS[1], 'epoch', 1)"
        return int(await raw.eval(script, 1, meta, f"owner-{self.name}"))

    async def commit(self, record: SessionRecord, epoch: int, round_number: int, random: Random) -> None:
        tokens = tuple(random.randrange(2**32) for _ in range(random.randint(1, 4)))
        commit = a_round(record, round_number, owner=f"owner-{self.name}", epoch=epoch, tokens=tokens)
        await self.store.commit(commit)
        self.committed[round_number] = tokens
        if random.random() < 0.3:
            await self.store.commit(commit)  # as after a lost reply; a conflict if taken over meanwhile


@pytest.mark.parametrize("seed", range(4))
async def test_rounds_are_committed_once_and_in_order(
    open_store: OpenStore, redis_url: str, raw: redis.Redis, seed: int
) -> None:
    record = new_record()
    owners = [Owner(name, open_store(redis_url)) for name in range(4)]
    await owners[0].store.create(record, EMPTY_STATE)
    await asyncio.gather(*(owner.run(record, raw, Random(8 * seed + owner.name)) for owner in owners))
    stored = await owners[0].store.load(record.session)
    assert stored is not None
    acknowledged = [(n, tokens) for owner in owners for n, tokens in owner.committed.items()]
    assert sorted(n for n, _ in acknowledged) == list(range(ROUNDS))
    assert list(stored.ids) == [*PROMPT, *(token for _, tokens in sorted(acknowledged) for token in tokens)]
    assert sum(len(owner.committed) > 0 for owner in owners) > 1


class StoreAgainstModel(RuleBasedStateMachine):
    """Any sequence of commits, right ones and wrong ones, against a dozen lines that say what must come of it."""

    redis: EmbeddedRedis

    @initialize()
    def create(self) -> None:
        self.loop = asyncio.Runner()
        self.store, self.record = RedisStore(self.redis.url, PATIENT), new_record()
        self.loop.run(self.store.create(self.record, EMPTY_STATE))
        self.ids, self.state = list(PROMPT), bytearray(EMPTY_STATE)
        self.last: Commit | None = None
        self.rounds, self.finished = 0, False

    def expect(self, commit: Commit, accepted: bool) -> None:
        if accepted:
            self.loop.run(self.store.commit(commit))
        else:
            with pytest.raises(Conflict):
                self.loop.run(self.store.commit(commit))

    @rule(
        tokens=st.lists(st.integers(0, 2**32 - 1), max_size=5),
        patch=st.tuples(st.integers(0, 500), st.binary(max_size=9)),
        last=st.integers(0, 9).map(lambda n: n == 0),
    )
    def next_round(self, tokens: list[int], patch: tuple[int, bytes], last: bool) -> None:
        reason = "stop" if last else None
        commit = a_round(self.record, self.rounds, tokens=tokens, patches=(patch,), finish_reason=reason)
        self.expect(commit, accepted=not self.finished)
        if not self.finished:
            self.ids += tokens
            self.state[patch[0] : patch[0] + len(patch[1])] = patch[1]
            self.rounds, self.last, self.finished = self.rounds + 1, commit, last

    @precondition(lambda self: self.last)
    @rule()
    def repeat(self) -> None:
        assert self.last is not None
        self.expect(self.last, accepted=True)

    @rule(distance=st.integers(-3, 3).filter(bool))
    def another_round(self, distance: int) -> None:
        if self.rounds + distance >= 0:
            self.expect(a_round(self.record, self.rounds + distance, tokens=(1, 2, 3)), accepted=False)

    @rule(epoch=st.sampled_from((0, 2)))
    def another_epoch(self, epoch: int) -> None:
        self.expect(a_round(self.record, self.rounds, epoch=epoch), accepted=False)

    @rule()
    def another_owner(self) -> None:
        self.expect(a_round(self.record, self.rounds, owner="gateway-b"), accepted=False)

    @invariant()
    def stored_is_what_was_accepted(self) -> None:
        stored = self.loop.run(self.store.load(self.record.session))
        assert stored is not None
        assert (list(stored.ids), stored.state, stored.rounds) == (self.ids, bytes(self.state), self.rounds)
        assert (stored.finish_reason == "stop") is self.finished

    def teardown(self) -> None:
        self.loop.run(self.store.close())
        self.loop.close()


def test_any_sequence_of_commits_behaves_as_the_model(own_redis: EmbeddedRedis) -> None:
    class Machine(StoreAgainstModel):
        redis = own_redis

    case = Machine.TestCase
    case.settings = settings(
        max_examples=25, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
    )
    case().runTest()
