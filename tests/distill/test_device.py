"""A student made on an accelerator is the one made on the host."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from adasd.core.errors import InvalidRequest
from adasd.distill.ablation import ablate, parse_variants
from adasd.distill.generate import Generator
from adasd.distill.recipe import Recipe
from adasd.distill.run import distil
from tests.distill.conftest import EOS, tiny_llama
from tests.distill.test_generate import asked
from tests.distill.test_run import recipe


def brief(folder: Path) -> Recipe:
    known = recipe(folder, answers=16, held_out=2)
    return replace(known, training=replace(known.training, positions=500, every=1))


def test_answers_are_those_of_the_host(elsewhere: torch.device) -> None:
    wanted = asked(9, temperature=0.8, each=2)
    here, there = (
        {answer.question.name: answer for answer in Generator(model, EOS, slots=4, limit=20, length=48).answers(wanted)}
        for model in (tiny_llama(), tiny_llama().to(elsewhere))
    )
    assert here.keys() == there.keys()
    for name, answer in there.items():
        assert answer.ids.device.type == "cpu"
        assert answer.ids.tolist() == here[name].ids.tolist()
        torch.testing.assert_close(answer.hidden, here[name].hidden, atol=1e-2, rtol=1e-2)


def test_students_are_those_of_the_host(elsewhere: torch.device, folder: Path, tmp_path: Path) -> None:
    for device in ("cpu", str(elsewhere)):
        distil(brief(folder), tmp_path / device, device)
    here, there = (load_file(tmp_path / device / "student" / "model.safetensors") for device in ("cpu", str(elsewhere)))
    assert here.keys() == there.keys()
    for name, weight in there.items():
        torch.testing.assert_close(weight, here[name], atol=2e-3, rtol=2e-3)


class Killed(Exception):
    pass


def test_a_run_there_that_was_cut_off_goes_on_to_the_same_weights(
    elsewhere: torch.device, folder: Path, tmp_path: Path
) -> None:
    def show(stage: str, done: float, text: str) -> None:
        if stage == "training" and done > 0.5:
            raise Killed

    distil(brief(folder), tmp_path / "whole", str(elsewhere))
    with pytest.raises(Killed):
        distil(brief(folder), tmp_path / "cut", str(elsewhere), show)
    distil(brief(folder), tmp_path / "cut", str(elsewhere))
    whole, cut = (load_file(tmp_path / name / "student" / "model.safetensors") for name in ("whole", "cut"))
    assert all(torch.equal(whole[name], cut[name]) for name in whole)


def test_variants_and_those_who_begin_as_earlier_ones_train_there_too(
    elsewhere: torch.device, folder: Path, tmp_path: Path
) -> None:
    distil(brief(folder), tmp_path / "first")
    again = replace(brief(folder), init=str(tmp_path / "first" / "student"))
    distil(again, tmp_path / "second", str(elsewhere))
    (outcome,) = ablate(again, parse_variants("0,2,3:250"), tmp_path / "second", str(elsewhere))
    assert 0 < outcome.acceptance < 1
    assert outcome.draft > 0


@pytest.mark.parametrize("device", ["cuda:7", "toaster"])
def test_a_device_that_is_not_there_is_refused_before_anything_is_written(
    folder: Path, tmp_path: Path, device: str
) -> None:
    with pytest.raises(InvalidRequest, match=device):
        distil(recipe(folder), tmp_path / "out", device)
    assert not (tmp_path / "out").exists()
