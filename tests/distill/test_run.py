from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from adasd.core.errors import InvalidRequest
from adasd.distill.ablation import ablate, parse_variants
from adasd.distill.recipe import Recipe
from adasd.distill.run import distil
from adasd.distill.store import AnswerStore
from adasd.distill.train import TrainingPlan
from adasd.runtime.student import load_student


def recipe(folder: Path, **changes: object) -> Recipe:
    known: dict[str, object] = {
        "target": str(folder / "target"),
        "prompts": (f"a={folder / 'a.jsonl'}", f"b={folder / 'b.jsonl'}"),
        "training": TrainingPlan(positions=6_000, rate=3e-3, batch=300, every=5),
        "layers": (0, 3),
        "vocabulary": 250,
        "answers": 120,
        "limit": 20,
        "longest_prompt": 20,
        "slots": 16,
        "held_out": 4,
    }
    return Recipe(**known | changes)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def whole(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("whole")
    distil(recipe(folder), out)
    return out


def test_the_student_loads_and_drafts_for_its_target(folder: Path, whole: Path) -> None:
    student = load_student(whole / "student", folder / "target")
    logits = student(torch.tensor([[50, 60]])).logits
    assert logits.shape == (1, 2, 300)
    assert torch.isfinite(logits[0, 0]).sum() == 250
    target = AutoModelForCausalLM.from_pretrained(folder / "target")
    ids = torch.tensor([[77]])
    asked = {"attention_mask": torch.ones_like(ids), "max_new_tokens": 8, "do_sample": False}
    assert torch.equal(target.generate(ids, assistant_model=student, **asked), target.generate(ids, **asked))


def test_the_card_tells_curve_data_and_acceptance_of_every_source(whole: Path) -> None:
    card = (whole / "student" / "README.md").read_text()
    assert re.search(r"^- a: \d+ prompts, \d+ answers of \d+ tokens$", card, re.MULTILINE)
    for source in ("a", "b", "all"):
        for temperature in ("0", "0.7", "1"):
            assert re.search(rf"^\| {source} \| {temperature} \| \d+ \| [01]\.\d\d\d \|$", card, re.MULTILINE)
    curve = re.findall(r"^\| \d+ \| \d+ \| \S+ \| (0\.\d+) \|", card, re.MULTILINE)
    assert float(curve[-1]) > float(curve[0]) + 0.04


def test_held_out_prompts_are_answered_apart_from_training(whole: Path) -> None:
    training = {question.prompt for question, _ in AnswerStore(whole / "answers").questions()}
    held_out = {question.prompt for question, _ in AnswerStore(whole / "held-out").questions()}
    assert held_out
    assert not training & held_out


PROGRAM = """
import sys, torch
from pathlib import Path
from tests.distill.test_run import recipe
from adasd.distill.run import distil
torch.set_num_threads(1)
distil(recipe(Path(sys.argv[1])), Path(sys.argv[2]))
"""


@pytest.mark.slow
def test_killed_at_any_point_and_resumed_gives_the_same_weights(folder: Path, whole: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-c", PROGRAM, str(folder), str(tmp_path)]
    for sign in ("held-out/part-*", "training.pt"):
        running = subprocess.Popen(command, cwd=Path(__file__).parents[2])
        deadline = time.monotonic() + 120
        while not list(tmp_path.glob(sign)) and running.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        os.kill(running.pid, signal.SIGKILL)
        assert running.wait() == -signal.SIGKILL
    distil(recipe(folder), tmp_path)
    resumed, uninterrupted = (load_file(out / "student" / "model.safetensors") for out in (tmp_path, whole))
    assert resumed.keys() == uninterrupted.keys()
    assert all(torch.equal(resumed[name], uninterrupted[name]) for name in resumed)


def test_a_folder_begun_with_another_recipe_is_refused(folder: Path, whole: Path) -> None:
    with pytest.raises(InvalidRequest, match="begun with another vocabulary"):
        distil(recipe(folder, vocabulary=200), whole)


def test_layers_the_target_lacks_are_refused_before_anything_is_written(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="some of the target's 4"):
        distil(recipe(folder, layers=(0, 9)), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_student_can_begin_as_an_earlier_one(folder: Path, whole: Path, tmp_path: Path) -> None:
    again = recipe(folder, init=str(whole / "student"), training=TrainingPlan(positions=1, batch=300))
    card = (distil(again, tmp_path) / "README.md").read_text()
    assert "| source | temperature | positions | first | this |" in card


def test_a_recipe_without_an_end_is_refused(folder: Path) -> None:
    with pytest.raises(InvalidRequest, match="needs an end"):
        recipe(folder, answers=None)


def test_an_ablation_trains_every_variant_on_the_same_answers_and_weighs_time(folder: Path, whole: Path) -> None:
    variants = parse_variants("0,1,2,3:300;0:100")
    small = recipe(folder, training=TrainingPlan(positions=300, batch=300))
    outcomes = list(ablate(small, variants, whole))
    assert [one.variant for one in outcomes] == list(variants)
    assert outcomes[0].acceptance > 0.9 > outcomes[1].acceptance
    assert all(one.draft > 0 and one.best.speedup >= 1 for one in outcomes)
    grown = recipe(folder, layers=(0, 3), init=str(whole / "student"), training=TrainingPlan(positions=300))
    (larger,) = ablate(grown, parse_variants("0,2,3:250"), whole)
    assert larger.acceptance > outcomes[1].acceptance + 0.05  # it has the earlier one's training behind it
    with pytest.raises(InvalidRequest, match="variants read like"):
        parse_variants("0,1")
