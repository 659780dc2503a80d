"""How the ranks of one group find one another in torchrun's store, which also holds what earlier groups left there."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any
from uuid import uuid4

from torch.distributed import PrefixStore, rendezvous  # type: ignore[attr-defined]

from adasd.core.errors import ServiceUnavailable
from adasd.runtime.ranks import Ranks

PAUSE_SECONDS = 0.05


def meet(ranks: Ranks, timeout: timedelta) -> Any:
    """A part of the store that only the ranks of this start of the group use. Waits for all of them.

    torchrun keeps one store for all starts of a group, where a rank that is early would find the addresses of ranks
    that have ended; the restarts that it counts may differ between machines. Raises ServiceUnavailable.
    """
    store, _, _ = next(iter(rendezvous("env://", timeout=timeout)))
    name = _welcome(store, ranks.size, timeout) if ranks.rank == 0 else _arrive(store, ranks.rank)
    return PrefixStore(f"adasd/{name}", store)


def _welcome(store: Any, size: int, timeout: timedelta) -> str:
    """Rank 0 names the group, and tells whoever says hello until all have understood; an old hello harms nobody."""
    name, deadline = uuid4().hex, time.monotonic() + timeout.total_seconds()
    while (arrived := store.add(f"adasd/{name}/arrived", 0)) < size - 1:
        if time.monotonic() > deadline:
            raise ServiceUnavailable(f"{arrived} of {size - 1} other ranks arrived within {timeout}")
        for hello in (f"adasd/hello/{rank}" for rank in range(1, size)):
            if store.check([hello]):
                store.set(f"adasd/welcome/{store.get(hello).decode()}", name)
        time.sleep(PAUSE_SECONDS)
    return name


def _arrive(store: Any, rank: int) -> str:
    visit = uuid4().hex
    store.set(f"adasd/hello/{rank}", visit)
    name: str = store.get(f"adasd/welcome/{visit}").decode()
    store.add(f"adasd/{name}/arrived", 1)
    return name
