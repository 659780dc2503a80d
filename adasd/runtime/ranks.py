"""Which of the processes of a tensor-parallel model this one is, as torchrun tells it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Ranks:
    """rank: 0 .. size - 1; rank 0 serves. local_size: ranks on this machine."""

    rank: int = 0
    size: int = 1
    local_size: int = 1

    @classmethod
    def read(cls, environment: Mapping[str, str]) -> Ranks:
        """One process, unless torchrun started more."""
        if int(environment.get("WORLD_SIZE", 1)) == 1:
            return cls()
        return cls(int(environment["RANK"]), int(environment["WORLD_SIZE"]), int(environment["LOCAL_WORLD_SIZE"]))
