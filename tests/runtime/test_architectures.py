"""Which architectures are served, which are refused, and the cache underneath."""

from __future__ import annotations

from copy import deepcopy
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
from adasd.runtime.modules import ModuleBody
from adasd.runtime.ragged import RaggedRuntime
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
        ModuleBody(build())


def test_a_failed_pass_leaves_the_session_at_its_base() -> None:
    network = deepcopy(model("qwen2"))
    runtime = RaggedRuntime(ModuleBody(network), info())
    runtime.forward([Segment(b"s", 0, [1, 2, 3], 0)])

    def fail(*_: object) -> None:
        raise RuntimeError("out of memory")

    hook = network.get_submodule("model.layers.2").register_forward_pre_hook(fail)
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
