"""From a name to a runtime and its kernels; what cannot be loaded is refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import BloomConfig, BloomForCausalLM

from adasd.core.errors import InvalidRequest
from adasd.core.host import HostKernels
from adasd.kernels.device import DeviceKernels
from adasd.runtime.base import Segment
from adasd.runtime.fingerprint import vocabulary_fingerprint, weights_fingerprint
from adasd.runtime.linear import can_pack
from adasd.runtime.loading import RuntimeOptions, load_model
from adasd.runtime.options import Role
from adasd.runtime.ragged import RaggedRuntime
from adasd.runtime.student import EMBEDDING, HEAD
from adasd.runtime.toy import ToyRuntime, is_toy
from adasd.runtime.toy_tokenizer import toy_tokenizer, write_toy_files
from tests.runtime.models import CONTEXT, VOCABULARY, model


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("target")
    model("llama").save_pretrained(folder)
    write_toy_files(folder, VOCABULARY, CONTEXT)
    return folder


@pytest.fixture(scope="module")
def draft(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("draft")
    model("student").save_pretrained(folder)
    weights = load_file(folder / "model.safetensors")
    save_file({k: v for k, v in weights.items() if k not in (EMBEDDING, HEAD)}, folder / "model.safetensors")
    return folder


def test_a_toy_comes_with_the_kernels_of_the_host() -> None:
    runtime, kernels = load_model("toy:seed=1,vocab=32", "draft", RuntimeOptions(support=9, context_length=77))
    assert isinstance(runtime, ToyRuntime)
    assert kernels == HostKernels(9)
    assert runtime.info().context_length == 77


def test_a_folder_comes_with_the_kernels_of_the_device(target: Path) -> None:
    runtime, kernels = load_model(str(target), "target", RuntimeOptions(support=None))
    assert isinstance(runtime, RaggedRuntime)
    assert isinstance(kernels, DeviceKernels)
    info = runtime.info()
    assert (info.name, info.vocabulary, info.support) == (target.name, VOCABULARY, VOCABULARY)
    assert (info.context_length, info.eos_ids) == (CONTEXT, (0,))


def test_a_student_is_known_by_its_config(draft: Path, target: Path) -> None:
    student, _ = load_model(str(draft), "draft", RuntimeOptions(target=target))
    whole, _ = load_model(str(target), "target", RuntimeOptions())
    assert student.info().support == 20
    assert student.info().vocabulary == VOCABULARY
    assert student.info().vocabulary_fingerprint == whole.info().vocabulary_fingerprint
    assert student.info().weights_fingerprint != whole.info().weights_fingerprint


def test_a_toy_and_a_folder_of_one_tokenizer_have_one_vocabulary(target: Path) -> None:
    folder, _ = load_model(str(target), "target", RuntimeOptions())
    toy, _ = load_model(f"toy:vocab={VOCABULARY}", "draft", RuntimeOptions())
    assert folder.info().vocabulary_fingerprint == toy.info().vocabulary_fingerprint


def test_the_type_asked_for_is_the_type_of_the_weights(target: Path) -> None:
    """Llamas are multiplied in it, and float32 in between; whatever is not written out is converted, and so are Llamas
    on processors that do not multiply it.
    """
    between = torch.float32 if can_pack("bfloat16") else torch.bfloat16
    whole = load_model(str(target), "target", RuntimeOptions())[0].forward([Segment(b"s", 0, [5, 6, 7], 3)])[0]
    for dtype, logits in (("bfloat16", between), ("float16", torch.float16)):
        runtime = load_model(str(target), "target", RuntimeOptions(dtype=dtype, context_length=9))[0]  # type: ignore[arg-type]
        (rounded,) = runtime.forward([Segment(b"s", 0, [5, 6, 7], 3)])
        assert rounded.dtype is logits
        assert 0 < (rounded - whole).abs().max() < 0.5
        assert runtime.info().context_length == 9


def test_a_draft_has_weights_of_eight_bits_unless_told_otherwise(target: Path) -> None:
    """On the CPU, where it is written out: a pass reads a quarter of the bytes, and its rows hardly move."""

    def loaded(role: Role, **options: Any) -> tuple[str, torch.Tensor]:
        runtime, _ = load_model(str(target), role, RuntimeOptions(**options))
        (logits,) = runtime.forward([Segment(b"s", 0, [5, 6, 7], 3)])
        return runtime.info().weights_fingerprint, torch.as_tensor(logits)

    draft, whole, bytes_asked_for = loaded("draft"), loaded("target"), loaded("target", dtype="int8")
    assert draft[0] == bytes_asked_for[0] != whole[0]
    assert torch.equal(draft[1], bytes_asked_for[1])
    assert 0 < (draft[1] - whole[1]).abs().max() < 0.05 * whole[1].abs().max()
    for options in ({"dtype": "float32"}, {"passes": "static"}):
        fingerprint, logits = loaded("draft", **options)
        assert fingerprint == whole[0]
        torch.testing.assert_close(logits, whole[1], rtol=1e-4, atol=1e-4)


def test_bytes_are_for_what_is_written_out(target: Path) -> None:
    with pytest.raises(InvalidRequest, match="static passes of llama cannot be multiplied in int8"):
        load_model(str(target), "draft", RuntimeOptions(dtype="int8", passes="static"))


def test_several_eos_ids_of_the_generation_config_count(target: Path, tmp_path: Path) -> None:
    for file in target.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 0]}))
    runtime, _ = load_model(str(tmp_path), "target", RuntimeOptions())
    assert runtime.info().eos_ids == (0, 7)
    alone, _ = load_model(str(target), "target", RuntimeOptions())
    assert runtime.info().vocabulary_fingerprint != alone.info().vocabulary_fingerprint


def test_a_special_token_is_part_of_the_vocabulary() -> None:
    plain, special = toy_tokenizer(32), toy_tokenizer(32)
    special.add_special_tokens(["e"])
    assert plain.get_vocab() == special.get_vocab()
    assert vocabulary_fingerprint(plain, [0]) == vocabulary_fingerprint(toy_tokenizer(32), [0])
    assert vocabulary_fingerprint(plain, [0]) != vocabulary_fingerprint(special, [0])


@pytest.mark.parametrize(
    ("spec", "options", "param"),
    [
        ("toy:vocabulary=9", {}, "vocabulary"),
        ("toy:context=9", {"context_length": 10}, "context_length"),
        ("/nowhere", {}, "model"),
        ("TARGET", {"device": "abacus"}, "device"),
        ("TARGET", {"device": "cuda:99"}, "device"),
        ("TARGET", {"context_length": CONTEXT + 1}, "context_length"),
    ],
)
def test_what_cannot_be_served_is_refused_by_name(target: Path, spec: str, options: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        load_model(spec.replace("TARGET", str(target)), "target", RuntimeOptions(**options))
    assert refusal.value.param == param


NUMBERS = ["threads", "prefill_chunk", "running_chunk", "kv_positions", "support", "context_length"]


@pytest.mark.parametrize("name", NUMBERS)
def test_options_must_be_positive(name: str) -> None:
    options: dict[str, Any] = {name: 0}
    with pytest.raises(InvalidRequest) as refusal:
        RuntimeOptions(**options)
    assert refusal.value.param == name


def test_a_model_without_a_longest_context_needs_one_named(tmp_path: Path) -> None:
    """Bloom's positions are biases, so its config names no longest context."""
    BloomForCausalLM(BloomConfig(vocab_size=VOCABULARY, hidden_size=16, n_layer=1, n_head=2)).save_pretrained(tmp_path)
    write_toy_files(tmp_path, VOCABULARY, CONTEXT)
    with pytest.raises(InvalidRequest, match="bloom names no longest context"):
        load_model(str(tmp_path), "target", RuntimeOptions())
    with pytest.raises(InvalidRequest, match="its attention cannot be replaced"):
        load_model(str(tmp_path), "target", RuntimeOptions(context_length=40))


def test_a_student_cannot_be_a_target(draft: Path, target: Path) -> None:
    with pytest.raises(InvalidRequest, match="cannot be a target"):
        load_model(str(draft), "target", RuntimeOptions(target=target))


def test_a_student_without_its_target_says_so(draft: Path) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        load_model(str(draft), "draft", RuntimeOptions())
    assert refusal.value.param == "target"


def test_a_folder_without_tokenizer_is_refused(target: Path, tmp_path: Path) -> None:
    model("llama").save_pretrained(tmp_path)
    with pytest.raises(InvalidRequest, match=r"no tokenizer\.json"):
        load_model(str(tmp_path), "target", RuntimeOptions())


def test_the_weights_fingerprint_sees_one_changed_tensor(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    weights = {name: tensor.clone() for name, tensor in model("llama").state_dict().items()}
    save_file(weights, file)
    before = weights_fingerprint(tmp_path)
    weights["model.norm.weight"][0] += 1
    save_file(weights, file)
    assert weights_fingerprint(tmp_path) != before
    weights["model.norm.weight"][0] -= 1
    save_file(weights, file)
    assert weights_fingerprint(tmp_path) == before


def test_a_folder_without_weights_has_no_fingerprint(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        weights_fingerprint(tmp_path)


@pytest.mark.parametrize(
    ("spec", "expected"), [("toy:seed=1", True), ("toy", True), ("toys/llama", False), ("toy-llama", False)]
)
def test_only_a_toys_prefix_makes_a_toy(spec: str, expected: bool) -> None:
    """A folder whose name begins alike is a folder."""
    assert is_toy(spec) is expected
