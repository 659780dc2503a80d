"""Many owners, one session: no round is committed twice or out of order, whoever commits in between."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, TypeVar

import pytest
import redis.asyncio as redis
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from adasd.core.errors import Conflict
from adasd.state.base import Commit, Ownership, SessionRecord
from adasd.state.embedded import EmbeddedRedis
from adasd.state.record import SessionKeys
from adasd.state.redis_store import RedisStore
from tests.state.conftest import PATIENT, OpenStore
from tests.state.proxy import Proxy
from tests.state.sessions import EMPTY_STATE, PROMPT, a_round, new_record

ROUNDS = 40
T = TypeVar("T")


@dataclass
class Owner:
    """One gateway with connections of its own. `committed`: what the store told it is in."""

    name: int
    store: RedisStore
    committed: dict[int, tuple[int, ...]] = field(default_factory=dict)

    async def run(self, record: SessionRecord, raw: redis.Redis, random: Random) -> None:
        """Take the session over, commit until somebody else has done so, and again, until all rounds are in."""
        meta = SessionKeys.of(record.session).meta
        while int(await raw.hget(meta, "round") or 0) < ROUNDS:
            await raw.hset(meta, "lease", "0")  # as if everybody were late
            try:
                ownership, next_round = await self.store.take_over(record.session, f"owner-{self.name}")
                for round_number in range(next_round, ROUNDS):
                    await asyncio.sleep(random.choice((0, 0, 0.001)))
                    await self.commit(record, ownership.epoch, round_number, random)
            except Conflict:
                await asyncio.sleep(random.uniform(0, 0.003))

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


@dataclass
class Gateway:
    """What one task of a gateway believes: under which epoch it owns the session, and which round is next."""

    name: str
    epoch: int = 0
    round_number: int = 0


GATEWAYS = st.sampled_from((0, 1, 2))


class StoreAgainstModel(RuleBasedStateMachine):
    """Gateways that own, lose and take over a session, any reply of Redis lost, leases lapsing at any time, against a
    few lines that say what must come of it. A belief may be stale: then what it leads to must be refused.
    """

    redis: EmbeddedRedis

    @initialize()
    def create(self) -> None:
        self.loop = asyncio.Runner()
        self.proxy = Proxy(self.redis.url)
        self.loop.run(self.proxy.open())
        self.store, self.record = RedisStore(self.proxy.url, PATIENT), new_record("gateway-0")
        self.gateways = [Gateway(name) for name in ("gateway-0", "gateway-0", "gateway-1")]
        self.ids, self.state = list(PROMPT), bytearray(EMPTY_STATE)
        self.owner, self.epoch, self.rounds = 0, 1, 0
        self.held, self.finished = True, False
        self.last: tuple[int, Commit] | None = None
        self.gateways[0].epoch = 1
        self.loop.run(self.store.create(self.record, EMPTY_STATE))

    def expect(self, operation: Coroutine[Any, Any, T], accepted: bool, lost: bool) -> T | None:
        """Run one write; `lost` drops the reply to its first attempt. A refused one raises Conflict."""
        self.proxy.lose = int(lost)
        if accepted:
            return self.loop.run(operation)
        with pytest.raises(Conflict):
            self.loop.run(operation)
        return None

    def owns(self, n: int) -> bool:
        return n == self.owner and self.gateways[n].epoch == self.epoch

    @rule(
        n=GATEWAYS,
        tokens=st.lists(st.integers(0, 2**32 - 1), max_size=5),
        patch=st.tuples(st.integers(0, 500), st.binary(max_size=9)),
        reason=st.sampled_from((None,) * 8 + ("stop", "cancelled")),
        distance=st.sampled_from((0,) * 6 + (-2, -1, 1)),
        lost=st.booleans(),
    )
    def commit(
        self, n: int, tokens: list[int], patch: tuple[int, bytes], reason: Any, distance: int, lost: bool
    ) -> None:
        gateway = self.gateways[n]
        round_number = max(0, gateway.round_number + distance)
        commit = a_round(
            self.record, round_number, owner=gateway.name, epoch=gateway.epoch, tokens=tokens, patches=(patch,),
            finish_reason=reason,
        )  # fmt: skip
        repeated = self.owns(n) and self.last is not None and self.last[1] == commit and self.last[0] == self.epoch
        accepted = self.owns(n) and not self.finished and round_number == self.rounds
        self.expect(self.store.commit(commit), accepted or repeated, lost)
        if accepted:
            self.ids += tokens
            self.state[patch[0] : patch[0] + len(patch[1])] = patch[1]
            self.rounds, self.last, self.held, self.finished = self.rounds + 1, (self.epoch, commit), True, bool(reason)
            gateway.round_number = self.rounds

    @precondition(lambda self: self.last)
    @rule(lost=st.booleans())
    def repeat_the_last_commit(self, lost: bool) -> None:
        """OK for its owner as long as nobody has taken over since, and not applied again."""
        assert self.last is not None
        epoch, commit = self.last
        self.expect(self.store.commit(commit), accepted=epoch == self.epoch, lost=lost)

    @rule(n=GATEWAYS, claim=st.sampled_from(("lapsed", "lapsed", "any", "own")), lost=st.booleans())
    def take_over(self, n: int, claim: Any, lost: bool) -> None:
        own = self.gateways[n].epoch
        accepted = not self.finished and {"lapsed": not self.held, "any": True, "own": own == self.epoch}[claim]
        attempt = self.store.take_over(self.record.session, self.gateways[n].name, own if claim == "own" else claim)
        taken = self.expect(attempt, accepted, lost)
        if taken is not None:
            self.owner, self.epoch, self.held = n, self.epoch + 1, True
            assert taken == (Ownership(self.record.session, self.gateways[n].name, self.epoch), self.rounds)
            self.gateways[n].epoch, self.gateways[n].round_number = self.epoch, self.rounds

    @rule(n=GATEWAYS, release=st.booleans(), lost=st.booleans())
    def renew(self, n: int, release: bool, lost: bool) -> None:
        ownership = Ownership(self.record.session, self.gateways[n].name, self.gateways[n].epoch)
        self.expect(self.store.renew(ownership, release), accepted=self.owns(n), lost=lost)
        if self.owns(n) and not self.finished:
            self.held = not release

    @rule()
    def lapse(self) -> None:
        self.loop.run(self.store._client.hset(SessionKeys.of(self.record.session).meta, "lease", "1"))  # type: ignore[arg-type]
        self.held = self.finished and self.held

    @rule(n=GATEWAYS, stale=st.booleans(), lost=st.booleans())
    def next_turn(self, n: int, stale: bool, lost: bool) -> None:
        former = self.loop.run(self.store.load(self.record.session))
        assert former is not None
        epoch = former.record.epoch + 1
        record = replace(self.record, owner=self.gateways[n].name, epoch=epoch, prompt=(*former.ids, 5))
        accepted = (self.finished or not self.held) and not stale
        known = replace(former, rounds=former.rounds + 1) if stale else former
        self.expect(self.store.create(record, former.state, known), accepted, lost)
        if accepted:
            self.record, self.ids, self.owner, self.epoch, self.rounds = record, list(record.prompt), n, epoch, 0
            self.held, self.finished, self.last = True, False, None
            self.gateways[n].epoch, self.gateways[n].round_number = epoch, 0

    @invariant()
    def stored_is_what_was_accepted(self) -> None:
        stored = self.loop.run(self.store.load(self.record.session))
        tail = self.loop.run(self.store.tail(self.record.session, 2))
        assert stored is not None
        assert tail is not None
        assert (list(stored.ids), stored.state, stored.rounds) == (self.ids, bytes(self.state), self.rounds)
        assert (stored.record.owner, stored.record.epoch) == (self.gateways[self.owner].name, self.epoch)
        assert (stored.finish_reason is not None) is self.finished
        assert (tail.length, list(tail.ids), tail.finish_reason) == (len(self.ids), self.ids[2:], stored.finish_reason)

    def teardown(self) -> None:
        self.loop.run(self.store.close())
        self.loop.run(self.proxy.close())
        self.loop.close()


def test_any_interleaving_behaves_as_the_model(own_redis: EmbeddedRedis) -> None:
    class Machine(StoreAgainstModel):
        redis = own_redis

    case = Machine.TestCase
    case.settings = settings(
        max_examples=25, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
    )
    case().runTest()
