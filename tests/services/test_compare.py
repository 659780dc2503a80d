"""The program that compares ranks with one process, on a model in two ranks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from adasd.cli.processes import free_port
from adasd.runtime.toy_tokenizer import write_toy_files
from tests.runtime.models import CONTEXT, VOCABULARY, model


@pytest.mark.slow
def test_two_ranks_are_found_to_be_one_model(tmp_path: Path) -> None:
    model("llama").save_pretrained(tmp_path)
    write_toy_files(tmp_path, VOCABULARY, CONTEXT)
    (tmp_path / "prompts.txt").write_text("one\nmore\nand two\nlast\n")
    ranks = ["--nproc-per-node=2", f"--master-port={free_port()}"]
    draft = f"toy:seed=3,vocab={VOCABULARY},context={CONTEXT}"
    asked = [str(tmp_path), draft, "--rounds", "5", "--prompts", str(tmp_path / "prompts.txt")]
    command = [sys.executable, "-m", "torch.distributed.run", *ranks, "-m", "services.verifier.compare", *asked]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 ranks, 4 texts, 20 rounds" in done.stdout


def test_one_process_alone_has_nothing_to_compare(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "services.verifier.compare", str(tmp_path), "toy:seed=1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert "start this under torchrun" in done.stderr
