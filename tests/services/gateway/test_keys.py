"""Keys as lines, and a ring of them that follows its file."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from adasd.core.errors import InvalidRequest, Unauthenticated
from services.gateway.keys import ANONYMOUS, KEY_PREFIX, KeyRing, Principal, key_line, new_key


def bearer(key: str) -> str:
    return f"Bearer {key}"


def write(file: Path, *lines: str) -> None:
    """Replaced as Kubernetes replaces a mounted secret: another file under the same name."""
    fresh = file.with_suffix(".new")
    fresh.write_text("\n".join(lines))
    os.replace(fresh, file)


def test_keys_are_random_and_only_their_hash_is_written() -> None:
    first, second = new_key(), new_key()
    assert first != second
    assert first.startswith(KEY_PREFIX)
    assert len(first) >= len(KEY_PREFIX) + 43
    assert first not in key_line("alice", first)


@pytest.mark.parametrize(
    ("bounds", "expected"),
    [
        ((None, None), Principal("alice", 60, 2)),
        ((600, None), Principal("alice", 600, 2)),
        ((None, 8), Principal("alice", 60, 8)),
        ((600, 8), Principal("alice", 600, 8)),
    ],
)
def test_a_line_says_who_and_how_much(bounds: tuple[int | None, int | None], expected: Principal) -> None:
    key = new_key()
    ring = KeyRing(key_line("alice", key, *bounds), default=Principal("", 60, 2))
    assert ring.principal(bearer(key)) == expected
    assert ring.principal(f"bearer  {key} ") == expected


def test_without_keys_anybody_may_ask() -> None:
    ring = KeyRing()
    assert not ring.required
    assert ring.principal("Bearer whatever") == ANONYMOUS


@pytest.mark.parametrize(
    "header", ["", "Bearer", "Bearer ", "Bearer adasd-wrong", "Basic {key}", "{key}", "Bearer{key}"]
)
def test_everything_else_is_refused(header: str) -> None:
    key = new_key()
    with pytest.raises(Unauthenticated) as refused:
        KeyRing(key_line("alice", key)).principal(header.format(key=key))
    assert key not in str(refused.value)


def test_keys_come_and_go_with_their_file(tmp_path: Path) -> None:
    file, old, new = tmp_path / "keys", new_key(), new_key()
    write(file, "# clients", "", key_line("alice", old))
    ring = KeyRing(file=file)
    assert ring.principal(bearer(old)).name == "alice"
    write(file, key_line("alice", old), f"{key_line('alice', new, 5)}  # from now on")
    assert ring.principal(bearer(new)) == Principal("alice", 5)
    assert ring.principal(bearer(old)) == Principal("alice")
    write(file, key_line("alice", new))
    with pytest.raises(Unauthenticated):
        ring.principal(bearer(old))


def test_a_file_that_breaks_or_goes_away_changes_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file, key = tmp_path / "keys", new_key()
    write(file, key_line("alice", key))
    ring = KeyRing(file=file)
    write(file, f"alice:{key}")
    for _ in range(3):
        assert ring.principal(bearer(key)).name == "alice"
    file.unlink()
    assert ring.principal(bearer(key)).name == "alice"
    with pytest.raises(Unauthenticated):
        ring.principal("")
    errors = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert len(errors) == 2
    assert key not in caplog.text


def test_an_empty_file_lets_nobody_in(tmp_path: Path) -> None:
    write(tmp_path / "keys", "# none yet")
    for ring in (KeyRing(file=tmp_path / "keys"), KeyRing("")):
        with pytest.raises(Unauthenticated):
            ring.principal("")


@pytest.mark.parametrize(
    "line",
    [
        "{key}", "alice:{key}", "alice", "alice:", ":{hash}", "al ice:{hash}", "alice:{hash}0", "alice:{hash}:x",
        "alice:{hash}:0", "alice:{hash}:-1", "alice:{hash}:1.5", "alice:{hash}:1:1:1", "alice:{hash}::0",
    ],
)  # fmt: skip
def test_a_line_that_is_none_is_named_and_not_quoted(line: str, tmp_path: Path) -> None:
    key = new_key()
    digest = key_line("x", key).partition(":")[2]
    write(tmp_path / "keys", key_line("bob", new_key()), line.format(key=key, hash=digest))
    with pytest.raises(InvalidRequest, match="line 2") as refused:
        KeyRing(file=tmp_path / "keys")
    assert key not in str(refused.value)
    assert digest not in str(refused.value)


def test_one_key_is_not_two_clients() -> None:
    key = new_key()
    with pytest.raises(InvalidRequest, match="line 2"):
        KeyRing(f"{key_line('alice', key)}, {key_line('bob', key)}")


def test_a_file_that_is_not_there_at_the_start_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="cannot be read"):
        KeyRing(file=tmp_path / "keys")
