"""Functions compiled by numba, once a machine where there is a folder to keep them in."""

from __future__ import annotations

import os
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
from numba.core import config

from adasd.cache import cache_folder

F = TypeVar("F", bound=Callable[..., Any])
ALSO = ("core/worth.py",)
"""Of the package, files that know nothing of it but have functions which are compiled elsewhere."""
ARITHMETIC = {"reassoc", "contract", "nsz"}
"""Sums in any one order and fused products, but NaN and infinities as they are: a fault in the logits must show."""


def release(package: Path) -> str:
    """Names all that is compiled here as it is written now.

    numba keeps machine code for as long as the file of its function is unchanged; ours holds functions of other files.
    """
    own = [source for path in sorted(package.rglob("*.py")) if _has_compiled(path, source := path.read_bytes())]
    return blake2b(b"".join(own), digest_size=8).hexdigest()


def _has_compiled(path: Path, source: bytes) -> bool:
    return b"numba" in source or b"kernels.compiled" in source or path.as_posix().endswith(ALSO)


def _keeps() -> bool:
    """Whether what is compiled can be kept, in the folder of the models unless NUMBA_CACHE_DIR names another."""
    folder = Path(config.CACHE_DIR or cache_folder() / "compiled") / release(Path(__file__).parents[1])
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    config.CACHE_DIR = str(folder)
    return os.access(folder, os.W_OK)


KEEPS = _keeps()


def compiled(function: F) -> F:
    """Machine code on the first call, that runs without the interpreter's lock."""
    return cast(F, numba.njit(nogil=True, cache=KEEPS, fastmath=ARITHMETIC)(function))


def as_written(function: F) -> F:
    """Part of the compiled functions that call it, with every sum in the order in which it is written.

    It is kept with them, never by itself: what is loaded by itself is called, which costs tiles a tenth of their speed.
    """
    return cast(F, numba.njit(nogil=True, forceinline=True)(function))
