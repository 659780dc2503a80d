"""Models on an accelerator say what they say on the host, whichever way their passes go."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from adasd.core.decoding import Round
from adasd.core.grammar import Grammar
from adasd.core.stopping import stopping_rule
from adasd.core.types import Processing, SamplingParams
from adasd.runtime.loading import RuntimeOptions, load_grammars, load_model
from adasd.runtime.local import LocalPair
from adasd.runtime.options import Role
from adasd.runtime.replica import Replica
from adasd.runtime.toy_tokenizer import write_toy_files
from tests.runtime.models import CONTEXT, VOCABULARY, model

PROMPT = [3, 1, 4, 1, 5]
WORD = Grammar("regex", "[a-z]{1,12}")
PENALTIES = Processing(((5, 2.0), (9, -3.0)), 1.2, 0.5, 0.25, min_tokens=3, eos_ids=(0,))
WAYS = [
    (SamplingParams(seed=3), "fixed", "exact"),
    (SamplingParams(temperature=0.0), "fixed", "coupled"),
    (SamplingParams(temperature=0.8, top_k=20, top_p=0.9, min_p=0.02, seed=4), "adasd", "adasd"),
    (SamplingParams(temperature=0.9, seed=5, processing=PENALTIES), "marginal", "adasd-anchored"),
    (SamplingParams(seed=6, processing=Processing(eos_ids=(0,), grammar=WORD)), "fixed", "coupled"),
]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    made = {name: tmp_path_factory.mktemp("models") / name for name in ("llama", "gemma3", "student")}
    for name, folder in made.items():
        model(name).save_pretrained(folder)
        write_toy_files(folder, VOCABULARY, CONTEXT)
    return made


def replica(folder: Path, role: Role, device: str, passes: Any) -> Replica[Any]:
    options = RuntimeOptions(device=device, passes=passes, dtype="float32", kv_positions=2000, threads=1, support=32)
    return Replica(*load_model(str(folder), role, options), grammars=load_grammars(str(folder), options))


def written(pair: LocalPair, sampling: SamplingParams, stopping: str, acceptance: str) -> list[Round]:
    rule = stopping_rule(stopping, 3)
    return list(pair.generate(PROMPT, sampling, rule, acceptance, 8, top_logprobs=3))


@pytest.mark.parametrize("passes", ["ragged", "static"])
@pytest.mark.parametrize("target", ["llama", "gemma3"])
def test_a_pair_writes_the_same_there(
    elsewhere: torch.device, folders: dict[str, Path], target: str, passes: str
) -> None:
    here, there = (
        LocalPair(
            replica(folders["student"], "draft", device, passes), replica(folders[target], "target", device, passes)
        )
        for device in ("cpu", str(elsewhere))
    )
    for way in WAYS:
        on_host, on_device = (written(pair, *way) for pair in (here, there))
        assert [r.verdict.tokens for r in on_device] == [r.verdict.tokens for r in on_host]
