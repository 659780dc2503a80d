from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import typer
from typer.testing import CliRunner

from adasd.cli.inspect import inspect
from adasd.core.draws import CounterDraws, DrawKey, Purpose
from adasd.core.errors import InvalidRequest
from adasd.core.types import SamplingParams
from adasd.distill.construct import student_of
from adasd.distill.export import write_student
from adasd.distill.inspection import Pace, check_fit, expected_tokens, forecasts, measure_pace, overlaps
from adasd.runtime.loading import load_model
from adasd.runtime.options import RuntimeOptions
from adasd.runtime.toy import ToyRuntime, ToySpec
from tests.distill.conftest import tiny_llama


def _toy(spec: str) -> ToyRuntime:
    return ToyRuntime(ToySpec.parse(spec))


def test_a_foreign_vocabulary_is_refused_with_the_reason() -> None:
    with pytest.raises(InvalidRequest, match="another vocabulary"):
        check_fit(_toy("toy:vocab=64").info(), _toy("toy:vocab=65").info())


def test_twins_overlap_fully_and_strangers_less() -> None:
    target, twin, stranger = (
        _toy("toy:seed=1,sharpness=4"),
        _toy("toy:seed=1,sharpness=4"),
        _toy("toy:seed=2,sharpness=4"),
    )
    for temperature in (0.0, 1.0):
        sampling = SamplingParams(temperature=temperature, seed=3)
        assert overlaps(target, twin, [5, 6], sampling, 20) == pytest.approx(1.0)
        assert overlaps(target, stranger, [5, 6], sampling, 20).mean() < 0.6


def test_expected_tokens_by_hand() -> None:
    answer = np.array([0.5, 0.4, 1.0])
    assert expected_tokens([answer], 0) == 1
    assert expected_tokens([answer], 1) == pytest.approx(1 + (0.5 + 0.4 + 1.0) / 3)
    assert expected_tokens([answer], 2) == pytest.approx(1 + (0.5 + 0.2 + 0.4 + 0.4 + 1.0) / 3)


def test_speed_ups_weigh_tokens_against_time() -> None:
    found = forecasts([np.ones(1000)], Pace(draft=1.0, verify=(10.0, 10.0, 12.0)))
    assert [one.length for one in found] == [0, 1, 2]
    assert [one.speedup for one in found] == pytest.approx([1.0, 20 / 11, 30 / 14], rel=1e-2)


def _inspect(tmp_path: Path, target: str, draft: str) -> tuple[int, str]:
    data = tmp_path / "prompts.jsonl"
    data.write_text("\n".join(json.dumps(f"hello {index}") for index in range(3)))
    app = typer.Typer()
    app.command()(inspect)
    result = CliRunner().invoke(app, [target, draft, "--data", str(data), "--prompts", "3", "--tokens", "12"])
    return result.exit_code, result.output


def test_the_command_says_that_a_fast_twin_pays_and_a_slow_stranger_does_not(tmp_path: Path) -> None:
    code, said = _inspect(tmp_path, "toy:seed=1,delay_ms=20", "toy:seed=1")
    assert code == 0, said
    assert "expected acceptance 1.000" in said
    assert "Speculation pays with 1 to 8 candidates" in said
    code, said = _inspect(tmp_path, "toy:seed=1", "toy:seed=2,delay_ms=20")
    assert code == 0, said
    assert "Speculation will not pay" in said


def test_the_command_refuses_a_foreign_vocabulary(tmp_path: Path) -> None:
    code, said = _inspect(tmp_path, "toy:vocab=64", "toy:vocab=65")
    assert code == 1
    assert "another vocabulary" in said


def test_the_command_accepts_another_padding(tmp_path: Path) -> None:
    code, said = _inspect(tmp_path, "toy:vocab=301", "toy:vocab=300")
    assert code == 0
    assert "padded differently, 300 against 301" in said


@pytest.mark.parametrize("device", ["cpu", "elsewhere"])
def test_a_student_is_judged_by_the_ids_its_head_knows(
    elsewhere: torch.device, folder: Path, tmp_path: Path, device: str
) -> None:
    """All layers of the target, two thirds of its ids: the overlap is the target's mass on those."""
    known = torch.arange(0, 300, 3, dtype=torch.int32).add(1)
    write_student(student_of(tiny_llama(), (0, 1, 2, 3), known), tmp_path, "tiny", "card")
    options = RuntimeOptions(device=device if device == "cpu" else str(elsewhere), target=folder / "target")
    target, _ = load_model(str(folder / "target"), "target", options)
    student, _ = load_model(str(tmp_path), "draft", options)
    found = overlaps(target, student, [50, 60], SamplingParams(seed=3), 5)
    read, ids = tiny_llama(), [50, 60]
    for place, overlap in enumerate(found):
        p = read(torch.tensor([ids])).logits[0, -1].double().softmax(-1)
        assert overlap == pytest.approx(p[known.long()].sum().item(), abs=2e-2)  # the student is kept in half precision
        ids.append(CounterDraws(3).categorical(DrawKey(place, 0, Purpose.EMIT), p.numpy()))
    pace = measure_pace(target, student, [50, 60, 70], 2, repeats=1)
    assert pace.draft > 0
    assert len(pace.verify) == 3
