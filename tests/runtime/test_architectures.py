"""Which architectures are served, which are refused, and the cache underneath."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import (
    Lfm2Config,
    Lfm2ForCausalLM,
    MambaConfig,
    MambaForCausalLM,
    OpenAIGPTConfig,
    OpenAIGPTLMHeadModel,
    PreTrainedModel,
)

from adasd.core.errors import InvalidRequest, SessionNotFound
from adasd.runtime.base import Segment
from adasd.runtime.cache import HEADROOM, RollableLayer
from adasd.runtime.hf import HFRuntime
from tests.runtime.models import SHAPE, info, model


def mamba() -> PreTrainedModel:
    return MambaForCausalLM(MambaConfig(vocab_size=32, hidden_size=16, state_size=4, num_hidden_layers=2))


def lfm2() -> PreTrainedModel:
    """Convolution and attention layers in turn."""
    layers = ["conv", "full_attention", "conv"]
    return Lfm2ForCausalLM(Lfm2Config(**SHAPE, layer_types=layers, block_auto_adjust_ff_dim=False))


def openai_gpt() -> PreTrainedModel:
    return OpenAIGPTLMHeadModel(OpenAIGPTConfig(vocab_size=32, n_embd=16, n_layer=1, n_head=2))


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (mamba, "mamba cannot be served: layer 0 keeps a LinearAttentionLayer"),
        (lfm2, "lfm2 cannot be served: layer 0 keeps a LinearAttentionLayer"),
        (openai_gpt, "openai-gpt cannot be served: its forward takes no cache"),
    ],
)
def test_state_that_cannot_be_rolled_back_is_refused_by_name(build: Any, reason: str) -> None:
    with pytest.raises(InvalidRequest, match=reason):
        HFRuntime(build(), info())


def test_a_chunk_must_hold_a_position() -> None:
    with pytest.raises(InvalidRequest, match="prefill_chunk"):
        HFRuntime(model("llama"), info(), prefill_chunk=0)


def test_a_failed_pass_leaves_the_session_at_its_base() -> None:
    network = model("qwen2")
    runtime = HFRuntime(network, info(), prefill_chunk=2)
    runtime.forward([Segment(b"s", 0, [1, 2, 3], 0)])
    passes: list[int] = []

    def fail_on_the_second_pass(*_: object) -> None:
        passes.append(1)
        if len(passes) == 2:
            raise RuntimeError("out of memory")

    hook = network.get_submodule("model.layers.2").register_forward_pre_hook(fail_on_the_second_pass)
    try:
        with pytest.raises(RuntimeError, match="out of memory"):
            runtime.forward([Segment(b"s", 2, [4, 5, 6, 7], 1)])
    finally:
        hook.remove()
    with pytest.raises(SessionNotFound, match="2 positions"):
        runtime.forward([Segment(b"s", 3, [4], 1)])
    (after,) = runtime.forward([Segment(b"s", 2, [9], 1)])
    (fresh,) = runtime.forward([Segment(b"t", 0, [1, 2, 9], 1)])
    torch.testing.assert_close(after, fresh, atol=1e-4, rtol=1e-4)


def states(length: int, offset: int = 0) -> torch.Tensor:
    """Keys of one head of width 1 that say their position."""
    return torch.arange(offset, offset + length, dtype=torch.float32).reshape(1, 1, length, 1)


def held(layer: RollableLayer) -> list[int]:
    assert layer.keys is not None
    return [int(position) for position in layer.keys.flatten()]


def test_reading_and_rolling_back_move_the_end_of_one_buffer() -> None:
    layer = RollableLayer()
    layer.update(states(3), states(3))
    buffer = layer.keys.untyped_storage().data_ptr()
    layer.crop(-2)
    keys, values = layer.update(states(4, offset=50), states(4, offset=70))
    assert keys.flatten().tolist() == [0, 50, 51, 52, 53]
    assert values.flatten().tolist() == [0, 70, 71, 72, 73]
    assert keys.untyped_storage().data_ptr() == buffer
    assert layer.get_seq_length() == 5


def test_a_buffer_that_grows_keeps_what_it_holds() -> None:
    layer = RollableLayer()
    layer.update(states(2), states(2))
    layer.crop(-1)
    length = 3 * HEADROOM
    layer.update(states(length, offset=1), states(length, offset=1))
    assert held(layer) == list(range(length + 1))
    layer.crop(-layer.get_seq_length())
    assert layer.get_seq_length() == 0
    layer.update(states(1, offset=9), states(1, offset=9))
    assert held(layer) == [9]
