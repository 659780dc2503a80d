"""Memory of large temporaries is kept by the process: asking the kernel for it anew costs more than the arithmetic."""

from __future__ import annotations

import ctypes
import sys

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_ALWAYS_KEPT = 2**31 - 1
_LARGEST_KEPT = 2**30


def keep_freed_memory() -> bool:
    """Tell glibc to keep what is freed, for this whole process; whether there was a glibc to tell."""
    if sys.platform != "linux":
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, _LARGEST_KEPT)) and bool(mallopt(_M_TRIM_THRESHOLD, _ALWAYS_KEPT))
