"""Where on a machine is kept what is made once on it: converted models, compiled loops."""

from __future__ import annotations

import os
from pathlib import Path

CACHE_VARIABLE = "ADASD_CACHE"


def cache_folder() -> Path:
    """$ADASD_CACHE, else adasd under $XDG_CACHE_HOME, else under ~/.cache."""
    if named := os.environ.get(CACHE_VARIABLE):
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "adasd"
