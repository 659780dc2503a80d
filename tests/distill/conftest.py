from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

EOS = tuple(range(2, 40))
"""Many, so that random text ends at many lengths."""
WORDS = [f"w{index}." for index in range(300)]


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


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target's folder, tokenizer included, and two prompt files."""
    folder = tmp_path_factory.mktemp("models")
    tiny_llama().save_pretrained(folder / "target")
    words = Tokenizer(models.WordLevel({word: index for index, word in enumerate(WORDS)}, unk_token="w0."))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=words, eos_token="w2.").save_pretrained(folder / "target")
    for source, word in (("a", "w7."), ("b", "w8.")):
        lines = [json.dumps(f"w{40 + index}. {word} w{300 - index}.") for index in range(1, 100)]
        (folder / f"{source}.jsonl").write_text("\n".join(lines))
    return folder
