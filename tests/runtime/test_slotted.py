"""Passes at fixed shapes: who has which slot, and what may be repeated."""

from __future__ import annotations

import random
from copy import deepcopy
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch._dynamo.utils import counters
from torch.fx.experimental.proxy_tensor import make_fx

from adasd.core.errors import InvalidRequest, Overloaded, SessionNotFound
from adasd.core.types import Draft
from adasd.kernels.device import DeviceKernels
from adasd.runtime.base import Segment
from adasd.runtime.checkpoint import modules_runtime
from adasd.runtime.loading import RuntimeOptions, load_model
from adasd.runtime.ragged import RaggedRuntime
from adasd.runtime.replica import Replica
from adasd.runtime.slots import SlotPool, bucket
from adasd.runtime.slotted import ROOMY, SlottedRuntime
from adasd.runtime.static import SHORT, Run, Shape, StaticBody, Turn, shape_of
from adasd.runtime.tensor_parallel import Leader
from adasd.runtime.toy_tokenizer import write_toy_files
from tests.runtime.models import CONTEXT, VOCABULARY, info, model, slotted, torch_subject
from tests.runtime.test_replica import delta, verify
from tests.runtime.test_tensor_parallel import OneProcess

TOLERANCE = 1e-4


def saved(folder: Path) -> Path:
    """A small model as a folder."""
    model("llama").save_pretrained(folder)
    write_toy_files(folder, VOCABULARY, CONTEXT)
    return folder


def traced(run: Run) -> Run:
    """A recorder on the CPU: the operations alone, on the very tensors they worked on, as a graph has them."""
    operations = make_fx(lambda: run())()

    def replay() -> Tensor:
        result: Tensor = operations()
        return result

    return replay


def recorded(name: str, slots: int = 8) -> tuple[SlottedRuntime, list[str]]:
    """A runtime, and what it recorded."""
    network, notes = deepcopy(model(name)), []
    pool = SlotPool(network.config.num_hidden_layers, slots, CONTEXT + SHORT)

    def record(run: Run) -> Run:
        notes.append("recorded")
        replay = traced(run)

        def noted() -> Tensor:
            notes.append("repeated")
            return replay()

        return noted

    return SlottedRuntime(StaticBody(network, pool, record), pool, info()), notes


def wander(runtime: SlottedRuntime, name: str, sessions: int, passes: int, seed: int) -> None:
    """Random batches, rollbacks, departures and forks; every row is that of one pass over its session's text."""
    draw, full = random.Random(seed), torch_subject(model(name), runtime).full
    texts: dict[bytes, list[int]] = {}
    for _ in range(passes):
        batch, wanted = [], []
        for number in draw.sample(range(sessions), draw.randint(1, sessions)):
            session = b"%d" % number
            text = texts.get(session, [])
            text = text[: max(0, len(text) - draw.choice((0, 0, 1, 3, 20)))]
            ids = [draw.randrange(1, 96) for _ in range(draw.choice((1, 1, 2, 3, 5, 9, 40)))][: CONTEXT - len(text)]
            rows = draw.randint(0, len(ids))
            batch.append(Segment(session, len(text), ids, rows))
            texts[session] = text + ids
            wanted.append(full(texts[session])[len(texts[session]) - rows :] if rows else np.zeros((0, 96)))
        for logits, expected in zip(runtime.forward(batch), wanted, strict=True):
            np.testing.assert_allclose(np.asarray(logits), expected, atol=TOLERANCE, rtol=TOLERANCE)
        if texts and draw.random() < 0.2:
            gone = draw.choice(sorted(texts))
            runtime.release(gone)
            del texts[gone]


@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_sessions_come_and_go_without_touching_one_another(name: str) -> None:
    wander(slotted(name), name, sessions=6, passes=40, seed=1)


def test_passes_that_were_recorded_say_what_the_others_say() -> None:
    runtime, notes = recorded("llama")
    wander(runtime, "llama", sessions=4, passes=60, seed=2)
    assert notes.count("recorded") >= 3
    assert notes.count("repeated") > 2 * notes.count("recorded")


def test_a_shape_that_cannot_be_recorded_goes_on_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    def refuse(run: Run) -> Run:
        raise RuntimeError("operation not permitted when stream is capturing")

    network = deepcopy(model("llama"))
    pool = SlotPool(network.config.num_hidden_layers, 4, CONTEXT + SHORT)
    runtime = SlottedRuntime(StaticBody(network, pool, refuse), pool, info())
    wander(runtime, "llama", sessions=2, passes=20, seed=3)
    assert "cannot be recorded" in caplog.text


def test_sessions_far_up_are_brought_down() -> None:
    """A lone stream among many that rest does not pay for their rows."""
    runtime, full = slotted("llama", slots=40), torch_subject(model("llama"), slotted("llama")).full
    texts = {b"%d" % number: [1 + number, 2, 3 + number, 4, 5][: 2 + number % 4] for number in range(40)}
    runtime.forward([Segment(session, 0, text, 0) for session, text in texts.items()])
    pool = runtime._pool
    assert pool.slot(b"39") == 39 > ROOMY
    (logits,) = runtime.forward([Segment(b"39", 5, [7], 1)])
    np.testing.assert_allclose(np.asarray(logits), full([*texts[b"39"], 7])[-1:], atol=TOLERANCE, rtol=TOLERANCE)
    assert pool.slot(b"39") == 0
    assert pool.held() == {session: len(text) + (session == b"39") for session, text in texts.items()}
    for session in (b"0", b"17", b"38"):  # those who gave way, and those who did not, hold what they held
        (logits,) = runtime.forward([Segment(session, len(texts[session]), [9], 1)])
        np.testing.assert_allclose(np.asarray(logits), full([*texts[session], 9])[-1:], atol=TOLERANCE, rtol=TOLERANCE)


def test_one_session_more_than_there_are_slots_is_refused_and_costs_nobody_anything() -> None:
    runtime = slotted("llama", slots=2)
    runtime.forward([Segment(b"a", 0, [1, 2], 0), Segment(b"b", 0, [3], 0)])
    with pytest.raises(Overloaded, match="2 slots"):
        runtime.reserve(b"c", 1)
    with pytest.raises(Overloaded):
        runtime.forward([Segment(b"a", 1, [5], 1), Segment(b"c", 0, [4], 1)])
    assert runtime.capacity(b"c") == 0
    runtime.forward([Segment(b"a", 2, [5], 1)])
    runtime.release(b"b")
    runtime.reserve(b"c", 1)
    assert runtime.capacity(b"c") == CONTEXT


def test_forks_and_other_names() -> None:
    runtime, full = slotted("llama"), torch_subject(model("llama"), slotted("llama")).full
    runtime.forward([Segment(b"a", 0, [1, 2, 3], 0)])
    runtime.fork(b"a", b"b", 2)
    runtime.rename(b"a", b"resting")
    (logits,) = runtime.forward([Segment(b"b", 2, [9], 1)])
    np.testing.assert_allclose(np.asarray(logits), full([1, 2, 9])[-1:], atol=TOLERANCE, rtol=TOLERANCE)
    with pytest.raises(SessionNotFound):
        runtime.fork(b"a", b"c", 1)
    with pytest.raises(SessionNotFound):
        runtime.rename(b"a", b"d")
    with pytest.raises(SessionNotFound):
        runtime.fork(b"resting", b"c", 4)


def test_a_pass_that_fails_leaves_every_session_at_its_base(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = slotted("llama")
    runtime.forward([Segment(b"a", 0, [1, 2, 3], 0), Segment(b"b", 0, [1, 2], 0)])
    with monkeypatch.context() as patched:

        def fail(*_: object) -> Tensor:
            raise RuntimeError("out of memory")

        patched.setattr(runtime._body, "forward", fail)
        with pytest.raises(RuntimeError):
            runtime.forward([Segment(b"a", 2, [5, 6, 7], 1), Segment(b"b", 2, [4], 1)])
    with pytest.raises(SessionNotFound, match="2 positions"):
        runtime.forward([Segment(b"a", 3, [5], 1)])
    runtime.forward([Segment(b"a", 2, [5], 1)])


def test_a_session_that_reads_nothing_takes_no_slot() -> None:
    runtime = slotted("llama", slots=1)
    runtime.forward([Segment(b"a", 0, [1, 2], 0)])
    (nothing,) = runtime.forward([Segment(b"b", 0, [], 0)])
    assert len(nothing) == 0
    assert runtime.capacity(b"b") == 0


def test_ranks_hold_the_same_whatever_rank_0_does() -> None:
    share, group = slotted("llama", slots=3), OneProcess(slotted("llama", slots=3))  # type: ignore[arg-type]
    leader: Any = Leader(share, group)  # type: ignore[arg-type]
    replica, alone = Replica(leader, DeviceKernels(None)), Replica(slotted("llama"), DeviceKernels(None))
    draw, refused = random.Random(4), 0
    for number in range(24):
        ids = [draw.randrange(1, 96) for _ in range(draw.randint(2, 60))]
        session = bytes([number % 5]) * 16
        context = delta(ids, session=session)
        try:
            assert verify(replica, context, Draft()).tokens == verify(alone, context, Draft()).tokens
        except Overloaded:
            refused += 1
        if number % 3 == 0:
            replica.release(session)
        follower: Any = group.follower
        assert follower._pool.held() == share._pool.held()
        for mine, others in zip(share._pool._blocks(), follower._pool._blocks(), strict=True):
            assert torch.equal(mine, others)
    assert 0 < refused < 12


def test_what_is_compiled_is_compiled_whole_and_once_a_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    """As far as the compiler's own back end, which takes minutes on a CPU."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    counters.clear()
    network = deepcopy(model("llama"))
    pool = SlotPool(network.config.num_hidden_layers, 4, CONTEXT + SHORT)
    runtime = SlottedRuntime(StaticBody(network, pool, compiled=True), pool, info())
    full = torch_subject(model("llama"), runtime).full
    for base, ids in ((0, [1, 2, 3]), (3, [4]), (4, [5]), (3, [6]), (4, [7])):
        (logits,) = runtime.forward([Segment(b"a", base, ids, 1)])
        text = [1, 2, 3, 6][:base] + ids if base != 4 or ids == [7] else [1, 2, 3, 4, 5]
        np.testing.assert_allclose(np.asarray(logits), full(text)[-1:], atol=TOLERANCE, rtol=TOLERANCE)
    assert counters["stats"]["unique_graphs"] <= 3  # the probe, four tokens, one token
    assert not counters["graph_break"]


def test_a_folder_is_served_at_fixed_shapes_where_asked(tmp_path: Path) -> None:
    folder = saved(tmp_path)
    options = RuntimeOptions(passes="static", kv_positions=4 * (CONTEXT + SHORT) + 1, threads=1)
    runtime, kernels = load_model(str(folder), "target", options)
    assert isinstance(runtime, SlottedRuntime)
    assert isinstance(kernels, DeviceKernels)
    full = torch_subject(model("llama"), runtime).full
    for base, ids in ((0, [1, 2, 3]), (3, [4]), (4, [5]), (3, [6])):
        (logits,) = runtime.forward([Segment(b"a", base, ids, 1)])
        text = [1, 2, 3, 4, 5][:base] + ids
        np.testing.assert_allclose(np.asarray(logits), full(text)[-1:], atol=TOLERANCE, rtol=TOLERANCE)
    for number in range(3):
        runtime.reserve(b"%d" % number, 1)
    with pytest.raises(Overloaded, match="4 slots"):
        runtime.reserve(b"more", 1)


def test_what_static_passes_cannot_be_is_refused(tmp_path: Path) -> None:
    folder = saved(tmp_path)
    with pytest.raises(InvalidRequest, match="hold no session of 96"):
        load_model(str(folder), "target", RuntimeOptions(passes="static", kv_positions=90))
    with pytest.raises(InvalidRequest, match="int8"):
        load_model(str(folder), "target", RuntimeOptions(passes="static", dtype="int8"))
    with pytest.raises(InvalidRequest, match="passes=static"):
        RuntimeOptions(compiled=True)
    assert RuntimeOptions(device="cuda:0", compiled=True).static_passes
    assert not RuntimeOptions(device="cuda", passes="ragged").static_passes


@pytest.mark.parametrize(
    ("slots", "options", "kind"),
    [(8, {}, SlottedRuntime), (7, {}, RaggedRuntime), (7, {"compiled": True}, SlottedRuntime)],
)
def test_by_default_slots_are_for_devices_that_hold_enough_of_them(
    slots: int, options: dict[str, Any], kind: type[object]
) -> None:
    fitting = RuntimeOptions(device="cuda", kv_positions=slots * (CONTEXT + SHORT), **options)
    assert isinstance(modules_runtime(deepcopy(model("llama")), info(), fitting), kind)
    asked = replace(fitting, passes="static")
    assert isinstance(modules_runtime(deepcopy(model("llama")), info(), asked), SlottedRuntime)


def test_rolling_back_and_reading_on_move_no_memory() -> None:
    runtime = slotted("llama")
    runtime.forward([Segment(b"a", 0, [1, 2, 3], 0)])
    before = [block.data_ptr() for block in runtime._pool._blocks()]
    for base in (2, 1, 0):
        runtime.forward([Segment(b"a", base, [4, 5], 1)])
    assert [block.data_ptr() for block in runtime._pool._blocks()] == before


@pytest.mark.parametrize(("number", "power"), [(1, 1), (2, 2), (3, 4), (16, 16), (17, 32)])
def test_buckets(number: int, power: int) -> None:
    assert bucket(number) == power


def test_shapes() -> None:
    pool = SlotPool(1, 12, 4096)
    assert shape_of([Turn(0, 0, [1])], pool) == Shape(1, 1, 256)
    assert shape_of([Turn(2, 300, [1, 2, 3]), Turn(0, 5, [1])], pool) == Shape(4, 4, 512)
    assert shape_of([Turn(9, 0, [1])], pool) == Shape(12, 1, 256)  # no more rows than slots
    long = shape_of([Turn(3, 4000, [1] * 90)], pool)
    assert long == Shape(1, 90, 4096, first=3)
    assert not long.repeats


def test_attention_with_a_cap_on_its_scores() -> None:
    """Gemma 2 caps scores, which the fused kernel cannot: against transformers' own attention."""
    from transformers import Gemma2Config, Gemma2ForCausalLM

    from tests.runtime.models import SHAPE

    torch.manual_seed(0)
    shape = SHAPE | {"head_dim": 8, "sliding_window": 6, "attn_logit_softcapping": 5.0, "final_logit_softcapping": 9.0}
    network = Gemma2ForCausalLM(Gemma2Config(**shape)).eval()
    network.set_attn_implementation("eager")
    pool = SlotPool(network.config.num_hidden_layers, 4, CONTEXT + SHORT)
    runtime = SlottedRuntime(StaticBody(deepcopy(network), pool), pool, info())
    text = [1 + i % 90 for i in range(40)]
    runtime.forward([Segment(b"a", 0, text[:30], 0)])
    (logits,) = runtime.forward([Segment(b"a", 30, text[30:], 10)])
    expected = torch_subject(network, runtime).full(text)[-10:]
    np.testing.assert_allclose(np.asarray(logits), expected, atol=TOLERANCE, rtol=TOLERANCE)
