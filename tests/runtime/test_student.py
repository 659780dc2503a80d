"""The trimmed draft model as a model class of transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, GenerationConfig, LlamaConfig, LlamaForCausalLM

from adasd.core.errors import InvalidRequest
from adasd.runtime.student import (
    EMBEDDING,
    HEAD,
    HEAD_IDS,
    TrimmedLlamaConfig,
    TrimmedLlamaForCausalLM,
    is_complete,
    load_student,
)
from tests.runtime.models import SHAPE, VOCABULARY, model

KNOWN = list(range(0, 60, 3))
PROMPT = torch.tensor([[5, 6, 7, 8]])


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tied target with an EOS of its own in the generation config."""
    folder = tmp_path_factory.mktemp("target")
    torch.manual_seed(1)
    network = LlamaForCausalLM(LlamaConfig(**SHAPE, tie_word_embeddings=True))
    network.generation_config = GenerationConfig(eos_token_id=[0, 9], pad_token_id=0)
    network.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def draft(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A student folder without embedding and head."""
    folder = tmp_path_factory.mktemp("draft")
    model("student").save_pretrained(folder)
    weights = load_file(folder / "model.safetensors")
    save_file({k: v for k, v in weights.items() if k not in (EMBEDDING, HEAD)}, folder / "model.safetensors")
    return folder


def test_logits_are_those_of_the_head_rows_and_minus_infinity_elsewhere() -> None:
    network: Any = model("student")
    with torch.inference_mode():
        logits = network(PROMPT).logits
        known = network.model(PROMPT).last_hidden_state @ network.lm_head.weight.T
    assert logits.shape == (1, 4, VOCABULARY)
    torch.testing.assert_close(logits[..., KNOWN], known)
    others = [token for token in range(VOCABULARY) if token not in KNOWN]
    assert torch.isneginf(logits[..., others]).all()


def test_the_head_computes_known_rows_only() -> None:
    network: Any = model("student")
    assert network.lm_head.weight.shape == (len(KNOWN), SHAPE["hidden_size"])


def test_generate_works_and_stays_in_the_known_ids() -> None:
    network: Any = model("student")
    torch.manual_seed(3)
    text = network.generate(PROMPT, attention_mask=torch.ones_like(PROMPT), max_new_tokens=20, do_sample=True)
    assert set(text[0, 4:].tolist()) <= set(KNOWN)


def test_assisted_generation_gives_the_greedy_text_of_the_target() -> None:
    network: Any = model("llama")
    options: dict[str, Any] = {"attention_mask": torch.ones_like(PROMPT), "max_new_tokens": 20, "do_sample": False}
    alone = network.generate(PROMPT, **options)
    assert torch.equal(network.generate(PROMPT, assistant_model=model("student"), **options), alone)


def test_a_complete_folder_needs_no_target(tmp_path: Path) -> None:
    network = model("student")
    network.save_pretrained(tmp_path)
    assert is_complete(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert isinstance(again, TrimmedLlamaForCausalLM)
    for loaded in (again, load_student(tmp_path)):
        assert loaded.state_dict().keys() == network.state_dict().keys()
        for name, tensor in network.state_dict().items():
            assert torch.equal(loaded.state_dict()[name], tensor), name


@pytest.mark.parametrize("loaded", [False, True])
def test_what_the_folder_lacks_comes_from_the_target(draft: Path, target: Path, loaded: bool) -> None:
    assert not is_complete(draft)
    network = LlamaForCausalLM.from_pretrained(target)
    student = load_student(draft, network if loaded else target)
    embedding = network.model.embed_tokens.weight
    assert torch.equal(student.model.embed_tokens.weight, embedding)
    assert torch.equal(student.lm_head.weight, embedding[KNOWN])
    assert torch.equal(student.model.layers[0].mlp.up_proj.weight, model("student").model.layers[0].mlp.up_proj.weight)
    assert student.generation_config.eos_token_id == [0, 9]


def test_an_untied_target_in_shards_lends_its_head(draft: Path, tmp_path: Path) -> None:
    network = model("llama")
    network.save_pretrained(tmp_path, max_shard_size="20KB")
    assert (tmp_path / "model.safetensors.index.json").exists()
    student = load_student(draft, tmp_path)
    assert torch.equal(student.model.embed_tokens.weight, network.get_input_embeddings().weight)
    assert torch.equal(student.lm_head.weight, network.get_output_embeddings().weight[KNOWN])


def test_weights_take_the_type_asked_for(draft: Path, target: Path) -> None:
    assert load_student(draft, target, torch.bfloat16).lm_head.weight.dtype == torch.bfloat16


def test_without_its_target_it_is_refused(draft: Path) -> None:
    with pytest.raises(InvalidRequest, match="no embedding of its own"):
        load_student(draft)


def test_a_target_of_another_width_is_refused(draft: Path) -> None:
    wide = LlamaForCausalLM(LlamaConfig(**SHAPE | {"hidden_size": 64}))
    with pytest.raises(InvalidRequest, match=r"\(96, 64\), the student needs \(96, 32\)"):
        load_student(draft, wide)


def test_weights_that_do_not_match_the_config_are_refused(draft: Path, target: Path, tmp_path: Path) -> None:
    config = TrimmedLlamaConfig.from_pretrained(draft)
    config.num_hidden_layers = 4
    config.save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").write_bytes((draft / "model.safetensors").read_bytes())
    with pytest.raises(InvalidRequest, match=r"model\.layers\.3"):
        load_student(tmp_path, target)


def test_the_known_ids_are_part_of_the_weights(draft: Path) -> None:
    assert load_file(draft / "model.safetensors")[HEAD_IDS].tolist() == KNOWN
