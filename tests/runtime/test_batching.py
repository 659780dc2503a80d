"""Many messages in one batch: who is in it, what each reads, and that nobody's answer depends on the company."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from adasd.core.adaptive import AcceptanceState
from adasd.core.context import context_hash
from adasd.core.errors import Overloaded
from adasd.core.host import HostKernels
from adasd.core.messages import ContextDelta, DraftRequest, Timing, VerifyRequest
from adasd.core.types import Draft, DraftPlan, FloatArray, SamplingParams
from adasd.core.verdicts import Verdict
from adasd.kernels.device import DeviceKernels
from adasd.kernels.products import Matrix
from adasd.runtime.base import Segment
from adasd.runtime.batching import Schedule
from adasd.runtime.decoder import Decoder
from adasd.runtime.kv import PAGE
from adasd.runtime.linear import INPUTS, Packed, Summed, can_pack, product
from adasd.runtime.passes import Job, Steps
from adasd.runtime.ragged import RaggedRuntime
from adasd.runtime.replica import Replica
from adasd.runtime.toy import ToyRuntime, ToySpec
from tests.runtime.models import CONTEXT, info, model, ragged

SAMPLING = SamplingParams(temperature=0.9, seed=7)


class Recorded(ToyRuntime):
    """A toy that notes its batches: by session, the base and the number of ids read. `fails` raises for a session."""

    def __init__(self, fails: bytes = b"") -> None:
        super().__init__(ToySpec(seed=1, vocab=32, eos_bias=-np.inf, context=4096))
        self.batches: list[dict[bytes, tuple[int, int]]] = []
        self.fails = fails

    def forward(self, batch: Sequence[Segment]) -> Sequence[FloatArray]:
        self.batches.append({segment.session[:1]: (segment.base, len(segment.ids)) for segment in batch})
        if any(segment.session[:1] == self.fails for segment in batch):
            raise RuntimeError("out of memory")
        return super().forward(batch)


def context(name: str, ids: Sequence[int], start: int = 0) -> ContextDelta:
    return ContextDelta(name.encode() * 16, len(ids), len(ids), start, list(ids[start:]), context_hash(ids))


def ids(length: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(1, 32, length).tolist()


class Asked:
    """Messages handed to a batcher, and what came of them."""

    def __init__(self, replica: Replica[Any]) -> None:
        self.replica, self.results = replica, dict[str, Any]()

    def draft(self, name: str, text: Sequence[int], candidates: int) -> None:
        self._add(name, self.replica.draft_steps(DraftRequest(context(name, text), SAMPLING, DraftPlan(candidates), 0)))

    def verify(self, name: str, text: Sequence[int], draft: Draft | None = None) -> None:
        packed = AcceptanceState().pack()
        request = VerifyRequest(context(name, text), SAMPLING, draft or Draft(), "exact", packed, 0)
        self._add(name, self.replica.verify_steps(request))

    def _add(self, name: str, steps: Steps[Any]) -> None:
        def done(result: Any, timing: Timing) -> None:
            self.results[name] = result

        self.replica.batcher.add(Job(steps, done))

    def step(self, times: int = 1) -> None:
        for _ in range(times):
            self.replica.batcher.step()

    def finish(self) -> dict[str, Any]:
        while self.replica.batcher.jobs:
            self.step()
        return self.results


def test_blocks_are_drafted_together_and_join_and_leave_between_tokens() -> None:
    runtime = Recorded()
    asked = Asked(Replica(runtime, HostKernels(None)))
    asked.draft("a", ids(5), 4)
    asked.draft("b", ids(7, 1), 2)
    asked.step()
    asked.draft("c", ids(3, 2), 2)
    asked.finish()
    assert [sorted(batch) for batch in runtime.batches] == [[b"a", b"b"], [b"a", b"b", b"c"], [b"a", b"c"], [b"a"]]
    assert runtime.batches[0] == {b"a": (0, 5), b"b": (0, 7)}
    assert runtime.batches[1] == {b"a": (5, 1), b"b": (7, 1), b"c": (0, 3)}


def test_company_changes_nobodys_block() -> None:
    texts = {"a": ids(5), "b": ids(7, 1), "c": ids(40, 2)}
    together = Asked(Replica(Recorded(), HostKernels(None)))
    for name, text in texts.items():
        together.draft(name, text, 5)
    results = together.finish()
    for name, text in texts.items():
        alone = Asked(Replica(Recorded(), HostKernels(None)))
        alone.draft(name, text, 5)
        assert alone.finish()[name].ids == results[name].ids


def test_a_long_prompt_is_read_in_pieces_that_let_running_streams_go_on() -> None:
    runtime = Recorded()
    asked = Asked(Replica(runtime, HostKernels(None), Schedule(chunk=256, running_chunk=64)))
    asked.verify("l", ids(600))
    asked.step()
    asked.draft("s", ids(4, 1), 3)
    asked.finish()
    assert runtime.batches == [
        {b"l": (0, 256)},
        {b"l": (256, 64), b"s": (0, 4)},
        {b"l": (320, 64), b"s": (4, 1)},
        {b"l": (384, 64), b"s": (5, 1)},
        {b"l": (448, 152)},
    ]


def test_long_prompts_share_a_step() -> None:
    runtime = Recorded()
    asked = Asked(Replica(runtime, HostKernels(None), Schedule(chunk=256)))
    asked.verify("a", ids(1000))
    asked.verify("b", ids(150, 1))
    asked.finish()
    assert runtime.batches[:3] == [
        {b"a": (0, 128), b"b": (0, 128)},
        {b"a": (128, 64), b"b": (128, 22)},
        {b"a": (192, 256)},
    ]


def test_a_block_longer_than_a_piece_is_read_beside_others_all_the_same() -> None:
    """All its rows come of one pass: read in pieces it would begin again with every one."""
    text = ids(5)
    block = Asked(Replica(Recorded(), HostKernels(None)))
    block.draft("b", text, 40)
    draft = block.finish()["b"]
    runtime = Recorded()
    asked = Asked(Replica(runtime, HostKernels(None), Schedule(chunk=16, running_chunk=8, running=4)))
    asked.verify("b", text, draft)
    for name in ("x", "y"):
        asked.draft(name, ids(60, 3), 1)
    asked.step(4)
    assert isinstance(asked.results["b"], Verdict)
    assert (0, 5 + 40) not in [batch.get(b"b") for batch in runtime.batches], "what comes before its rows may wait"
    asked.finish()


def test_who_begins_alike_begins_with_what_another_has_read() -> None:
    runtime, prompt = Recorded(), ids(50)
    replica = Replica(runtime, HostKernels(None))
    asked = Asked(replica)
    asked.verify("a", prompt)
    asked.finish()
    replica.release(b"a" * 16)
    asked.verify("b", [*prompt[:40], 1, 2])
    asked.verify("c", prompt)
    asked.verify("d", [*prompt[:15], 3])
    asked.finish()
    assert runtime.batches[1:] == [{b"b": (40, 2), b"c": (49, 1), b"d": (0, 16)}]
    fresh = Asked(Replica(Recorded(), HostKernels(None)))
    fresh.verify("c", prompt)
    assert fresh.finish()["c"].tokens == asked.results["c"].tokens


def test_what_has_ended_is_kept_for_so_many_only() -> None:
    runtime, prompt = Recorded(), ids(50)
    replica = Replica(runtime, HostKernels(None), Schedule(idle_sessions=1))
    asked = Asked(replica)
    for name, text in (("a", prompt), ("b", ids(50, 1))):
        asked.verify(name, text)
        asked.finish()
        replica.release(name.encode() * 16)
    asked.verify("c", prompt)
    asked.verify("d", ids(50, 1))
    asked.finish()
    assert runtime.batches[-1] == {b"c": (0, 50), b"d": (49, 1)}


def test_a_fault_is_its_own_jobs_only() -> None:
    asked = Asked(Replica(Recorded(fails=b"b"), HostKernels(None)))
    for name in "abc":
        asked.verify(name, ids(5, ord(name)))
    results = asked.finish()
    assert str(results["b"]) == "out of memory"
    assert isinstance(results["a"], Verdict)
    assert isinstance(results["c"], Verdict)


def test_room_is_made_at_the_cost_of_those_that_do_not_run() -> None:
    """KV for three: what nobody holds goes first, then the stream that waited longest; it is read again in time."""
    limit = 3 * PAGE
    asked = Asked(Replica(ragged("llama", kv_positions=limit), DeviceKernels(None)))
    texts = {name: [1 + (i * (3 + ord(name))) % 90 for i in range(20)] for name in "abcd"}
    for name in "abc":
        asked.verify(name, texts[name])
        asked.finish()
    asked.replica.release(b"a" * 16)
    asked.verify("d", texts["d"])
    assert isinstance(asked.finish()["d"], Verdict), "what was released made room"
    asked.verify("e", texts["a"])
    assert isinstance(asked.finish()["e"], Overloaded), "what is new takes no room from those that run"
    expected = asked.results["b"].tokens
    asked.verify("b", texts["b"])
    assert asked.finish()["b"].tokens == expected


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize("shape", [(40, 24), (24, INPUTS + 8)])
def test_a_product_depends_on_no_other_row(precision: Any, shape: tuple[int, int]) -> None:
    if precision == "bfloat16" and not can_pack(precision):
        pytest.skip("this processor multiplies no bfloat16")
    torch.manual_seed(0)
    multiply, rows = product(torch.randn(shape), torch.randn(shape[0]), precision), torch.randn(33, shape[1])
    alone = torch.cat([multiply(row[None]) for row in rows])
    for count in (2, 3, 4, 8, 17, 33):
        assert torch.equal(multiply(rows[:count]), alone[:count])


def test_long_sums_are_split_here() -> None:
    weight, rows = torch.randn(5, 3 * INPUTS + 1), torch.randn(4, 3 * INPUTS + 1)
    if not can_pack("float32"):
        pytest.skip("weights cannot be packed here")
    summed = Summed(weight, None, torch.float32)
    torch.testing.assert_close(summed(rows), rows @ weight.T, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "int8"])
def test_only_bfloat16_is_the_library_s(precision: Any) -> None:
    ours = precision != "bfloat16"
    if not ours and not can_pack(precision):
        pytest.skip("this processor multiplies no bfloat16")
    assert isinstance(product(torch.randn(5, 3), None, precision), Matrix if ours else Packed)


@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_logits_depend_on_no_other_session(precision: Any) -> None:
    """To the last bit, in company or alone: the same seed gives the same text whatever the batch."""
    runtime = RaggedRuntime(Decoder(model("llama"), CONTEXT, precision), info())
    texts = [ids(20 + 3 * i, i) for i in range(6)]
    together = runtime.forward([Segment(bytes([i]), 0, text, 4) for i, text in enumerate(texts)])
    for i, text in enumerate(texts):
        (alone,) = runtime.forward([Segment(bytes([100 + i]), 0, text, 4)])
        assert torch.equal(alone, together[i])
