"""Ranks agree: what rank 0 does the others repeat, what it refuses they never hear of, and who is lost is noticed."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.distributed import HashStore
from transformers import BloomConfig, LlamaConfig

from adasd.core.errors import AdasdError, InvalidRequest, Overloaded, SessionNotFound
from adasd.core.types import Draft
from adasd.kernels.device import DeviceKernels
from adasd.runtime.base import Segment
from adasd.runtime.group import FRAME_BYTES, LENGTH_BYTES, Group, framed, missing, unframed
from adasd.runtime.heartbeat import LOOKS, STEPS, Stamp, Watch
from adasd.runtime.loading import RuntimeOptions, join_ranks
from adasd.runtime.ragged import RaggedRuntime
from adasd.runtime.ranks import Ranks
from adasd.runtime.rendezvous import _arrive, _welcome
from adasd.runtime.replica import Replica
from adasd.runtime.tensor_parallel import Leader, repeat
from tests.runtime.models import SHAPE, ragged
from tests.runtime.test_replica import delta, verify

TWO = Ranks(0, 2, 2)


class OneProcess:
    """A group whose other rank lives here and holds the whole model too."""

    def __init__(self, follower: RaggedRuntime) -> None:
        self.follower = follower
        self.told: list[bytes] = []

    def share(self, message: bytes) -> None:
        self.told.append(message)
        repeat(self.follower, message)

    @contextmanager
    def together(self) -> Iterator[None]:
        yield


def pair(kv_positions: int | None = None) -> tuple[Leader, RaggedRuntime, OneProcess]:
    """A leader, its own share, and its group."""
    share, group = ragged("llama", kv_positions), OneProcess(ragged("llama", kv_positions))
    leader: Any = Leader(share, group)  # type: ignore[arg-type]
    return leader, share, group


def held(runtime: RaggedRuntime) -> dict[bytes, tuple[int, int, bytes]]:
    """All that a share knows of its sessions, the first layer's keys included."""
    return {
        name: (kv.capacity, kv.length, kv.read(0, kv.length)[0].numpy().tobytes() if kv.length else b"")
        for name, kv in runtime._sessions.items()
    }


def test_the_other_ranks_hold_what_rank_0_holds() -> None:
    """Rollbacks, forks, parked sessions that are dropped, and refusals, as a replica that is short of KV makes them."""
    leader, share, group = pair(kv_positions=3 * 64)
    replica, alone = Replica(leader, DeviceKernels(None)), Replica(ragged("llama"), DeviceKernels(None))
    generator = np.random.default_rng(3)
    shared = generator.integers(1, 96, 20).tolist()
    refused = 0
    for number in range(24):
        ids = [*shared[: generator.integers(14, 20)], *generator.integers(1, 96, generator.integers(1, 20)).tolist()]
        session = bytes([number % 5]) * 16
        context = delta(ids, session=session)
        try:
            assert verify(replica, context, Draft()).tokens == verify(alone, context, Draft()).tokens
        except Overloaded:
            refused += 1
        if number % 3 == 0:
            replica.release(session)
        assert held(group.follower) == held(share)
    operations = {message.split(b'"')[1].decode() for message in group.told}
    assert operations == {"forward", "reserve", "fork", "rename", "release"}
    assert 0 < refused < 12, refused


@pytest.mark.parametrize(
    ("segment", "error"),
    [
        (Segment(b"a", 9, [1], 1), SessionNotFound),
        (Segment(b"a", 0, [96], 1), InvalidRequest),
        (Segment(b"a", 0, [1] * 65, 1), InvalidRequest),
        (Segment(b"b", 0, [1], 1), Overloaded),
    ],
)
def test_what_is_refused_is_not_told(segment: Segment, error: type[AdasdError]) -> None:
    leader, share, group = pair(kv_positions=64)
    leader.forward([Segment(b"a", 0, [1, 2, 3], 1)])
    group.told.clear()
    before = held(share)
    with pytest.raises(error):
        leader.forward([segment])
    for refused in (lambda: leader.fork(b"a", b"b", 9), lambda: leader.rename(b"b", b"c")):
        with pytest.raises(SessionNotFound):
            refused()
    assert not group.told
    assert held(share) == before == held(group.follower)


class Ended(BaseException):
    """Instead of the end of this process."""


def test_what_fails_on_one_rank_alone_ends_its_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def end(status: int) -> None:
        raise Ended(status)

    monkeypatch.setattr(os, "_exit", end)
    group = object.__new__(Group)  # nobody to meet
    group.ranks, group._begun = TWO, 0
    with pytest.raises(Ended, match="1"), group.together():
        raise torch.OutOfMemoryError
    with pytest.raises(Overloaded), group.together():
        raise Overloaded("known before anything is told")


@pytest.mark.parametrize("length", [0, 1, FRAME_BYTES - LENGTH_BYTES, FRAME_BYTES - LENGTH_BYTES + 1, 10_000])
def test_a_message_of_any_length_arrives(length: int) -> None:
    message = bytes(number % 251 for number in range(length))
    frame, rest = framed(message)
    assert len(frame) == FRAME_BYTES
    assert missing(frame) == len(rest)
    assert unframed(frame, rest) == message


def stamps(*values: tuple[int, int]) -> list[Stamp]:
    return [Stamp(*value) for value in values]


def looks(of_rank_1: Any, begun: int = 7) -> list[str | None]:
    """What is found of two ranks of which the first is well."""
    watch = Watch(2)
    return [watch.look(stamps((beat, begun), of_rank_1(beat))) for beat in range(1, 2 * LOOKS)]


def test_a_rank_that_no_longer_stamps_is_lost() -> None:
    found = looks(lambda beat: (min(beat, 3), 7))
    assert found.index(next(filter(None, found))) == 2 + LOOKS
    assert "rank 1" in (found[-1] or "")


def test_a_rank_that_stamps_and_does_not_begin_what_others_have_is_lost() -> None:
    assert "rank 1" in (looks(lambda beat: (beat, 6))[-1] or "")


def test_a_rank_that_hangs_within_a_pass_is_lost_though_nobody_finishes_it() -> None:
    """Rank 0 stands at its next step, where it waits for the other."""
    watch = Watch(2)
    found = [watch.look(stamps((beat, min(40 + beat, 52)), (beat, min(40 + beat, 51)))) for beat in range(40)]
    assert found.index(next(filter(None, found))) == 11 + LOOKS
    assert found[-1] is not None
    assert "rank 1 is silent, or stuck in operation 0, step 51; another came to operation 0, step 52" in found[-1]


def test_a_finished_operation_is_one_place_whatever_steps_it_took() -> None:
    ranks = [object.__new__(Group) for _ in range(2)]
    for steps, group in enumerate(ranks):
        group._begun = 0
        for _ in range(3):
            group._begin_operation()
            for _ in range(steps):
                group.begin()
            group.finish()
    assert ranks[0]._begun == ranks[1]._begun == 4 * STEPS - 1


def test_while_weights_are_loaded_more_is_allowed_and_forgiven_afterwards() -> None:
    watch = Watch(2, 3 * LOOKS)
    silent = [watch.look(stamps((beat, 0), (1, 0))) for beat in range(3 * LOOKS)]
    assert not any(silent)
    watch.allow(LOOKS)
    afterwards = [watch.look(stamps((100 + beat, 0), (1, 0))) for beat in range(LOOKS)]
    assert [found is None for found in afterwards] == [True] * (LOOKS - 1) + [False]


@pytest.mark.parametrize("of_rank_1", [lambda beat: (beat, 7), lambda beat: (beat, beat // 4)])
def test_idling_a_long_pass_and_a_rank_that_is_late_are_no_loss(of_rank_1: Any) -> None:
    assert not any(looks(of_rank_1))


def test_ranks_that_start_again_do_not_meet_those_that_have_ended() -> None:
    store, names = HashStore(), []
    store.set("adasd/hello/1", "an earlier visit")
    store.set("adasd/hello/2", "another")

    def arrive(rank: int, found: list[str]) -> None:
        found.append(_arrive(store, rank))

    for _ in range(2):
        found: list[str] = []
        late = [threading.Thread(target=arrive, args=(rank, found)) for rank in (1, 2)]
        for thread in late:
            thread.start()
        names.append(_welcome(store, 3, timedelta(minutes=1)))
        for thread in late:
            thread.join()
        assert found == [names[-1]] * 2
    assert names[0] != names[1]


@pytest.mark.parametrize(
    ("config", "options", "param", "reason"),
    [
        (LlamaConfig(**SHAPE), {}, "model", "4 heads and 2 key heads cannot be divided among 3 ranks"),
        (LlamaConfig(**SHAPE), {"dtype": "int8"}, "dtype", "int8"),
        (LlamaConfig(**SHAPE), {"device": "cuda"}, "device", "cuda"),
        (BloomConfig(n_head=3), {}, "model", "bloom has no tensor-parallel plan"),
    ],
)
def test_what_cannot_be_divided_is_refused_before_anybody_waits(
    tmp_path: Path, config: Any, options: dict[str, Any], param: str, reason: str
) -> None:
    if options.get("device") == "cuda" and torch.cuda.is_available():
        pytest.skip("this machine has one")
    config.save_pretrained(tmp_path)
    with pytest.raises(InvalidRequest, match=reason) as refused:
        join_ranks(str(tmp_path), "target", RuntimeOptions(**options), Ranks(0, 3, 3))
    assert refused.value.param == param


def test_drafts_and_toys_run_in_one_process(tmp_path: Path) -> None:
    for spec, role in ((str(tmp_path), "draft"), ("toy:seed=1", "target")):
        with pytest.raises(InvalidRequest, match="runs in one process, torchrun started 2"):
            join_ranks(spec, role, RuntimeOptions(), TWO)  # type: ignore[arg-type]
