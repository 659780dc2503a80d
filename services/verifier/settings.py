"""The verifier's settings: ADASD_VERIFIER_*."""

from __future__ import annotations

import os

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from adasd.runtime.ranks import Ranks
from adasd.runtime.toy import is_toy
from services.environment import NESTED
from services.replica.settings import ReplicaSettings


class VerifierSettings(ReplicaSettings):
    """As `ReplicaSettings`, from variables such as ADASD_VERIFIER_MODEL and ADASD_VERIFIER_RUNTIME__THREADS.

    run_ahead: begin a session's next round before it is asked for, where it will hardly bring candidates. None: unless
    the models compute on all cores of this machine: what the services do meanwhile would hold their passes up by more
    than is won. On a CPU they are taken to, unless `threads` of all ranks here leave one core and nobody shares them.
    """

    model_config = SettingsConfigDict(
        env_prefix="ADASD_VERIFIER_", env_nested_delimiter=NESTED, env_parse_none_str="none", frozen=True
    )

    port: int = Field(50052, ge=0, le=65535)
    run_ahead: bool | None = None

    @property
    def runs_ahead(self) -> bool:
        """As told, or as the machine lets it."""
        if self.run_ahead is not None:
            return self.run_ahead
        if is_toy(self.model) or not self.runtime.device.startswith("cpu"):
            return True
        threads = (self.runtime.threads or cores()) * Ranks.read(os.environ).local_size
        return self.runtime.shared_cores is None and threads < cores()


def cores() -> int:
    """Of this machine that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
