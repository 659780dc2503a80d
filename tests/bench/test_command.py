"""`adasd bench` over real services with a toy pair, from data files to tables, JSON, plots and a trace."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from adasd.cli.main import app

TARGET = "toy:seed=1,vocab=48,sharpness=1.5,eos_bias=-8"
PAIR = ("--target", TARGET, "--draft", TARGET + ",mix=0.3,stranger=2")


def bench(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [Path(sys.executable).parent / "adasd", "bench", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def heed_sigint() -> None:
    """What a shell starts in the background, these tests perhaps, ignores it, and so does whatever it starts."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.parametrize("told", [signal.SIGINT, signal.SIGTERM])
def test_a_run_that_is_ended_keeps_what_it_has(tmp_path: Path, data: list[object], told: signal.Signals) -> None:
    endless = ("--prompts", 1, "--methods", "alone", "--max-tokens", 4, "--repeat", 100_000)
    command = [Path(sys.executable).parent / "adasd", "bench", *map(str, (*data, *endless, *PAIR))]
    with subprocess.Popen(
        [*command, "--out", str(tmp_path / "out")],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=heed_sigint,
    ) as running:
        try:
            assert running.stderr is not None
            for line in running.stderr:
                if "warm-up" in line and "100%" in line:
                    break
            time.sleep(3)  # for an answer of four tokens
            running.send_signal(told)
            assert running.wait(60) != 0
        finally:
            running.kill()
    answers = json.loads((tmp_path / "out" / "answers.json").read_text())["answers"]
    assert answers
    assert all(answer["reply"]["tokens"] == 4 for answer in answers)
    assert (tmp_path / "out" / "table.md").read_text().startswith("## 1 stream")


@pytest.fixture
def data(tmp_path: Path) -> list[object]:
    for name in ("sums", "talk"):
        (tmp_path / name).mkdir()
        lines = (json.dumps({"prompt": f"{name} number {index}"}) for index in range(4))
        (tmp_path / name / "test.jsonl").write_text("\n".join(lines))
    return [part for name in ("sums", "talk") for part in ("--data", tmp_path / name / "test.jsonl")]


def test_a_run_in_all_its_forms(tmp_path: Path, data: list[object]) -> None:
    options = ("--prompts", 4, "--methods", "alone,fixed:exact:3", "--max-tokens", 12, "--concurrency", "1,2")
    done = bench(*data, *options, *PAIR, "--trace", tmp_path / "trace.json", "--out", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert done.stdout.rstrip() == (tmp_path / "out" / "table.md").read_text().rstrip()
    assert all(title in done.stdout for title in ("## 2 streams", "### talk/test.jsonl", "## Commits", "- processor"))
    assert "## Where the time goes: fixed:exact:3" in done.stdout
    assert str(tmp_path) not in done.stdout

    answers = json.loads((tmp_path / "out" / "answers.json").read_text())["answers"]
    assert len(answers) == 2 * 2 * 2 * 4, "loads, files, methods, prompts"
    assert all(answer["error"] is None and answer["reply"]["tokens"] == 12 for answer in answers)
    for answer in answers:
        record, rounds = answer["reply"]["speculation"], answer["reply"]["rounds"]
        assert sum(one["tokens"] for one in rounds) == 12
        assert sum(one["drafted"] for one in rounds) == record["drafted"]
        assert (record["drafted"] == 0) == (answer["variant"] == "target alone")
    assert {path.stem for path in (tmp_path / "out").glob("*.svg")} == {"rates", "loads", "shares"}
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert {event["name"] for event in events} >= {"round 0", "draft", "verify", "commit", "telling"}


REFUSALS = (
    ("--methods", "fast", "no method 'fast'"),
    ("--concurrency", "5", "5 streams need at least as many prompts"),
    ("--prompts", "9", "holds 4 distinct prompts"),
    ("--peers", "nobody", "no peer 'nobody'"),
    ("--peers", "serve", "peers need model folders"),
)


@pytest.mark.parametrize(("option", "value", "told"), REFUSALS)
def test_what_cannot_run_is_refused_before_anything_starts(
    data: list[object], option: str, value: str, told: str
) -> None:
    given = {"--prompts": "4", option: value}
    arguments = ["bench", *data, *PAIR, *(part for pair in given.items() for part in pair)]
    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert done.exit_code == 1
    assert told in done.stderr


def test_answers_of_different_lengths_are_as_long_for_every_method(tmp_path: Path, data: list[object]) -> None:
    endless = TARGET.replace("eos_bias=-8", "eos_bias=-1000")
    lengths = ("--shortest", 3, "--max-tokens", 30, "--prompts", 4, "--methods", "alone,fixed:exact:2")
    done = bench(*data, *lengths, "--target", endless, "--draft", endless, "--out", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    answers = json.loads((tmp_path / "out" / "answers.json").read_text())["answers"]
    tokens: dict[tuple[str, int], set[int]] = {}
    for answer in answers:
        tokens.setdefault((answer["data"], answer["prompt"]), set()).add(answer["reply"]["tokens"])
    assert all(len(alike) == 1 for alike in tokens.values())
    drawn = [length for (length,) in map(tuple, tokens.values())]
    assert min(drawn) >= 3
    assert max(drawn) <= 30
    assert len(set(drawn)) > 2
    refused = bench(*data, "--shortest", 31, "--max-tokens", 30)
    assert refused.returncode == 1
    assert "shortest" in refused.stderr
