from __future__ import annotations

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

EOS = tuple(range(2, 40))
"""Many, so that random text ends at many lengths."""


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    torch.set_num_threads(1)


def tiny_llama(seed: int = 0) -> LlamaForCausalLM:
    """A random Llama whose text does not repeat itself at once, and ends now and then."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=300,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        initializer_range=0.3,
        eos_token_id=list(EOS),
        bos_token_id=1,
        pad_token_id=2,
        tie_word_embeddings=True,
    )
    return LlamaForCausalLM(config).eval().requires_grad_(False)


@pytest.fixture
def target() -> LlamaForCausalLM:
    return tiny_llama()
