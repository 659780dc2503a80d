"""`adasd key new`."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from adasd.cli.main import app
from services.gateway.keys import KEY_PREFIX, KeyRing, Principal


def test_the_printed_line_lets_the_printed_key_in() -> None:
    done = CliRunner().invoke(app, ["key", "new", "alice", "--rate", "60", "--concurrency", "2"])
    assert done.exit_code == 0
    assert KEY_PREFIX not in done.stdout, "standard output can be appended to the key file"
    key = done.stderr.split()[-1]
    assert KeyRing(done.stdout).principal(f"Bearer {key}") == Principal("alice", 60, 2)


@pytest.mark.parametrize("arguments", [["al:ice"], [""], ["alice", "--rate", "0"]])
def test_what_no_line_can_hold_is_refused(arguments: list[str]) -> None:
    done = CliRunner().invoke(app, ["key", "new", *arguments])
    assert done.exit_code != 0
    assert done.stdout == ""
