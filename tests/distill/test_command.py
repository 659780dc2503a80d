from __future__ import annotations

from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from adasd.cli.distill import distill, parse_duration, parse_numbers
from adasd.core.errors import InvalidRequest


def _distill(*arguments: str) -> tuple[int, str]:
    app = typer.Typer()
    app.command()(distill)
    result = CliRunner().invoke(app, arguments)
    return result.exit_code, result.output


def _arguments(folder: Path, out: Path, *more: str) -> list[str]:
    named = ["--target", str(folder / "target"), "--prompts", f"a={folder / 'a.jsonl'}", "--out", str(out)]
    small = ["--answers", "30", "--positions", "500", "--limit", "12", "--longest-prompt", "20", "--slots", "8"]
    return [*named, *small, "--layers", "0,3", "--vocabulary", "250", "--batch", "200", "--budget", "10m", *more]


def test_the_command_makes_a_student_and_goes_on_where_it_was(folder: Path, tmp_path: Path) -> None:
    for _ in range(2):
        code, said = _distill(*_arguments(folder, tmp_path))
        assert code == 0, said
    assert (tmp_path / "student" / "model.safetensors").is_file()
    assert "held-out: " in said or "training: " in said or "Student in" in said


def test_the_command_compares_students(folder: Path, tmp_path: Path) -> None:
    code, said = _distill(*_arguments(folder, tmp_path, "--ablate", "0,3:250;0:100"))
    assert code == 0, said
    assert "tokens a round" in said
    assert "0,3" in said


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        (["--layers", "0,9"], "layers must name some of the target's 4"),
        (["--loss", "mse"], "unknown loss 'mse'"),
        (["--budget", "soon"], "budget must read like 3h"),
        (["--temperatures", "hot"], "temperatures must be numbers"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(folder: Path, tmp_path: Path, more: list[str], reason: str) -> None:
    code, said = _distill(*_arguments(folder, tmp_path, *more))
    assert code == 1
    assert reason in said


def test_durations_and_lists() -> None:
    assert parse_duration("1h30m") == 5400
    assert parse_duration("90s") == 90
    assert parse_numbers("0,1.5", "x") == (0.0, 1.5)
    with pytest.raises(InvalidRequest, match="budget"):
        parse_duration("3")
