"""The toy model: specs, what makes two of them agree, and its tokenizer."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import jinja2
import numpy as np
import pytest
from tokenizers import Tokenizer

from adasd.core.errors import InvalidRequest
from adasd.core.sampling import softmax
from adasd.core.types import FloatArray
from adasd.runtime.toy import ToyRuntime, ToySpec, write_toy_model
from adasd.runtime.toy_tokenizer import END, toy_tokenizer, toy_tokens
from tests.runtime.models import read_once

TEXT = [1, 5, 9, 2, 5, 9, 30, 7]


def logits(spec: str) -> FloatArray:
    return read_once(ToyRuntime(ToySpec.parse(spec)), TEXT)


def test_importing_the_toy_imports_no_torch() -> None:
    code = "import sys, adasd.runtime.toy, adasd.runtime.loading; print('torch' in sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert loaded.stdout.strip() == "False"


def test_twins_agree_in_every_bit() -> None:
    assert np.array_equal(logits("toy:seed=4,vocab=32"), logits("toy:seed=4,vocab=32,context=64,delay_ms=1"))


def test_logits_do_not_change_between_releases() -> None:
    """Texts recorded with a toy stay reproducible."""
    row = read_once(ToyRuntime(ToySpec(seed=1, vocab=4)), [3, 1])[-1]
    np.testing.assert_allclose(row, [-0.80774014, 1.51837118, -0.15030131, -2.90145971], rtol=1e-7)


def test_strangers_differ_everywhere() -> None:
    ours, theirs = logits("toy:seed=4,vocab=32"), logits("toy:seed=5,vocab=32")
    assert not np.isclose(ours, theirs).any()


def overlap(left: FloatArray, right: FloatArray) -> float:
    """Mean expected acceptance, sum of min(p, q)."""
    return float(np.minimum(softmax(left), softmax(right)).sum(axis=-1).mean())


def test_mix_leads_from_twin_to_stranger() -> None:
    target = logits("toy:seed=1,vocab=32")
    overlaps = [overlap(target, logits(f"toy:seed=1,vocab=32,stranger=2,mix={mix}")) for mix in (0, 0.3, 0.6, 1)]
    assert overlaps[0] == pytest.approx(1.0)
    assert overlaps == sorted(overlaps, reverse=True)
    assert np.array_equal(logits("toy:seed=1,vocab=32,stranger=2,mix=1"), logits("toy:seed=2,vocab=32"))


def test_only_the_last_tokens_count() -> None:
    runtime = ToyRuntime(ToySpec(vocab=32, order=2))
    assert np.array_equal(read_once(runtime, [1, 2, 3, 4])[-1], read_once(runtime, [9, 3, 4])[-1])
    assert not np.array_equal(read_once(runtime, [1, 2, 3, 4])[-1], read_once(runtime, [1, 2, 5, 4])[-1])


def test_sharpness_goes_from_flat_to_peaked() -> None:
    peaks = [softmax(logits(f"toy:vocab=32,sharpness={s}")).max(axis=-1).mean() for s in (0, 0.5, 1, 3)]
    assert peaks[0] == pytest.approx(1 / 32)
    assert peaks == sorted(peaks)
    assert 0.1 < peaks[2] < 0.7


def test_eos_bias() -> None:
    plain, never = logits("toy:vocab=32"), logits("toy:vocab=32,eos_bias=-inf")
    assert np.isneginf(never[:, 0]).all()
    assert np.array_equal(plain[:, 1:], never[:, 1:])
    assert np.allclose(logits("toy:vocab=32,eos_bias=1.5")[:, 0], plain[:, 0] + 1.5)


def test_nan_after_spoils_positions_not_passes() -> None:
    assert np.isnan(logits("toy:vocab=32,nan_after=3")).any(axis=-1).tolist() == [False] * 3 + [True] * 5


def test_ids_without_a_token_have_no_probability() -> None:
    runtime = ToyRuntime(ToySpec(vocab=300))
    assert np.isneginf(read_once(runtime, TEXT)[:, 257:]).all()
    assert runtime.info().support == 257


@pytest.mark.parametrize(
    ("text", "param"),
    [
        ("toy:sed=1", "sed"),
        ("toy:vocab=2", "vocab"),
        ("toy:vocab=many", "vocab"),
        ("toy:seed=1.5", "seed"),
        ("toy:seed", "seed"),
        ("toy:mix=0.3", "stranger"),
        ("toy:mix=2,stranger=1", "mix"),
        ("toy:sharpness=nan", "sharpness"),
        ("toy:delay_ms=-1", "delay_ms"),
        ("toys:seed=1", "model"),
    ],
)
def test_bad_specs_are_refused_by_name(text: str, param: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        ToySpec.parse(text)
    assert refusal.value.param == param


def test_a_spec_names_every_key() -> None:
    text = "toy:seed=1,vocab=32,order=3,sharpness=2,eos_bias=-inf,mix=0.3,stranger=2,context=9,delay_ms=1,nan_after=4"
    assert ToySpec.parse(text) == ToySpec(1, 32, 3, 2.0, -math.inf, 0.3, 2, 9, 1.0, 4)
    assert ToySpec.parse("toy") == ToySpec.parse("toy:") == ToySpec()


def test_fingerprints_tell_vocabularies_and_weights_apart() -> None:
    specs = ("seed=1,vocab=32", "seed=1,vocab=32,context=9", "seed=2,vocab=32", "seed=1,vocab=40")
    one, twin, stranger, larger = (ToyRuntime(ToySpec.parse(f"toy:{spec}")).info() for spec in specs)
    assert one.weights_fingerprint == twin.weights_fingerprint != stranger.weights_fingerprint
    assert one.vocabulary_fingerprint == stranger.vocabulary_fingerprint != larger.vocabulary_fingerprint


def test_padding_does_not_change_the_vocabulary() -> None:
    fingerprints = {ToyRuntime(ToySpec(vocab=vocab)).info().vocabulary_fingerprint for vocab in (257, 300)}
    assert len(fingerprints) == 1


@pytest.mark.parametrize("vocab", [257, 400])
def test_any_text_survives_the_byte_tokenizer(vocab: int) -> None:
    tokenizer = toy_tokenizer(vocab)
    text = 'Ünïcode, 漢字 and 🙂\n\t"quotes"  two spaces'
    ids = tokenizer.encode(text).ids
    assert ids == [byte + 1 for byte in text.encode()]
    assert tokenizer.decode(ids) == text


def test_small_vocabularies_hold_frequent_characters() -> None:
    tokenizer = toy_tokenizer(32)
    assert tokenizer.get_vocab_size() == 32
    assert tokenizer.decode(tokenizer.encode("the end, zebra Q").ids) == "the end, zebra ?"


@pytest.mark.parametrize("vocab", [3, 32, 100, 256, 257, 300])
def test_tokens_are_distinct_and_fill_the_vocabulary(vocab: int) -> None:
    tokens = toy_tokens(vocab)
    assert len(set(tokens)) == len(tokens) == min(vocab, 257)
    assert toy_tokenizer(vocab).token_to_id(END) == 0


def test_a_written_toy_model_serves_a_gateway(tmp_path: Path) -> None:
    """tokenizers and jinja2 are all that is needed to read it."""
    write_toy_model(tmp_path / "toy", ToySpec.parse("toy:vocab=257,context=99"))
    tokenizer = Tokenizer.from_file(str(tmp_path / "toy" / "tokenizer.json"))
    config = json.loads((tmp_path / "toy" / "tokenizer_config.json").read_text())
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    prompt = jinja2.Template(config["chat_template"]).render(messages=messages, add_generation_prompt=True)
    assert prompt == "system: Be brief.\nuser: Hi\nassistant: "
    assert tokenizer.decode(tokenizer.encode(prompt).ids) == prompt
    assert tokenizer.encode("a" + config["eos_token"]).ids[-1] == 0
    assert config["model_max_length"] == 99
