from __future__ import annotations

import platform

from adasd.runtime.allocator import keep_freed_memory


def test_glibc_takes_the_advice_and_others_are_left_alone() -> None:
    assert keep_freed_memory() == (platform.libc_ver()[0] == "glibc")
