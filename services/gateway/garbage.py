"""Python's garbage collector in the gateway: it looks seldom, and only at what may yet become garbage."""

from __future__ import annotations

import gc

ALLOCATIONS = 50_000
"""More objects made than freed, until the collector looks for cycles among the youngest. A round makes none that last
and hardly a cycle, so that Python's own 700 are reached again and again by no more than the rounds under way."""


def collect_seldom() -> None:
    """Once all is loaded that stays until the end: modules and tokenizers are never looked at again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(ALLOCATIONS, *gc.get_threshold()[1:])
