"""API keys: who may use the gateway, and how much of it. Only hashes are kept, in lines that anybody may see:

    # name:sha256 of the key[:requests a minute[:requests at a time]]
    alice:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08:600:8

Keys are 256 random bits, so one round of SHA-256 hides them: scrypt and its like make guessing a weak password slow,
and would here only make every request slow. Two lines of one name are two keys of one client, the old and the new.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from adasd.core.errors import InvalidRequest, Unauthenticated

logger = logging.getLogger(__name__)

KEY_PREFIX = "adasd-"
KEY_BYTES = 32
_NAME = re.compile(r"[A-Za-z0-9._@-]{1,64}")
_HASH = re.compile(r"[0-9a-f]{64}")
_SCHEME = re.compile(r"bearer +", re.IGNORECASE)
_FORM = "must be name:sha256[:requests a minute[:requests at a time]]"


@dataclass(frozen=True, slots=True)
class Principal:
    """Who asks. name: of the key, empty where none is needed. rate: requests a minute, concurrency: at a time, at most;
    None for no bound.
    """

    name: str = ""
    rate: int | None = None
    concurrency: int | None = None


ANONYMOUS = Principal()
Keys = Mapping[bytes, Principal]
"""By the key's SHA-256."""


def new_key() -> str:
    """A fresh key, to be shown once."""
    return f"{KEY_PREFIX}{secrets.token_urlsafe(KEY_BYTES)}"


def key_line(name: str, key: str, rate: int | None = None, concurrency: int | None = None) -> str:
    """What a key file says of a key. Raises InvalidRequest for a name that no line can hold."""
    if not _NAME.fullmatch(name):
        raise InvalidRequest("a key's name has 1 to 64 letters, digits or any of . _ @ -", "name")
    bounds = ["" if bound is None else str(bound) for bound in (rate, concurrency)]
    return ":".join([name, _digest(key).hex(), *bounds]).rstrip(":")


class KeyRing:
    """The keys of a list and of a file, which is read again whenever it changes: keys come and go without a restart.

    With neither a list nor a file anybody may ask. A file that goes away or breaks later changes nothing but the log.
    """

    def __init__(self, listed: str | None = None, file: Path | None = None, default: Principal = ANONYMOUS) -> None:
        """listed: lines, separated by commas. default: bounds of keys that name none. Raises InvalidRequest naming the
        line at fault.
        """
        self.required = listed is not None or file is not None
        self._default = default
        self._listed = parse_keys((listed or "").split(","), default, "the list of keys")
        self._file = file
        self._version = _version(file) if file else None
        self._keys = self._merged()

    def principal(self, authorization: str) -> Principal:
        """Whose key an Authorization header carries. Raises Unauthenticated.

        Looking a hash up in a table tells nothing by its timing: nobody chooses the hash of a key.
        """
        if not self.required:
            return ANONYMOUS
        self._refresh()
        scheme = _SCHEME.match(authorization)
        if scheme is None:
            raise Unauthenticated("an API key is needed: send it as `Authorization: Bearer KEY`")
        known = self._keys.get(_digest(authorization[scheme.end() :].strip()))
        if known is None:
            raise Unauthenticated("this API key is not known here")
        return known

    def _refresh(self) -> None:
        if self._file is None or (version := _version(self._file)) == self._version:
            return
        self._version = version
        try:
            self._keys = self._merged()
        except InvalidRequest as error:
            logger.error("the keys stay as they were: %s", error)
        else:
            logger.info("%d keys", len(self._keys))

    def _merged(self) -> Keys:
        if self._file is None:
            return self._listed
        try:
            lines = self._file.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidRequest(f"the key file cannot be read: {error}", "keys_file") from None
        return {**self._listed, **parse_keys(lines, self._default, str(self._file))}


def parse_keys(lines: Iterable[str], default: Principal, source: str) -> Keys:
    """Raises InvalidRequest naming the line at fault; never its text, which may be a key put there by mistake."""
    keys: dict[bytes, Principal] = {}
    for number, line in enumerate(lines, 1):
        if not (entry := line.partition("#")[0].strip()):
            continue
        try:
            digest, principal = _parsed(entry, default)
        except ValueError:
            raise InvalidRequest(f"{source}, line {number}: {_FORM}", "keys") from None
        if keys.setdefault(digest, principal) != principal:
            raise InvalidRequest(f"{source}, line {number}: the key is that of another line", "keys")
    return keys


def _parsed(entry: str, default: Principal) -> tuple[bytes, Principal]:
    """Raises ValueError."""
    name, digest, *bounds = entry.split(":")
    if not _NAME.fullmatch(name) or not _HASH.fullmatch(digest.lower()) or len(bounds) > 2:
        raise ValueError
    rate, concurrency = [int(bound) if bound else None for bound in (*bounds, "", "")[:2]]
    if any(bound is not None and bound < 1 for bound in (rate, concurrency)):
        raise ValueError
    return bytes.fromhex(digest), Principal(name, rate or default.rate, concurrency or default.concurrency)


def _digest(key: str) -> bytes:
    return sha256(key.encode()).digest()


def _version(file: Path) -> tuple[int, int, int] | None:
    """Changes with the file; None while there is none."""
    try:
        found = os.stat(file)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
