"""The verifier's settings: ADASD_VERIFIER_*."""

from __future__ import annotations

import os

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from adasd.runtime.toy import is_toy
from services.environment import NESTED
from services.replica.settings import ReplicaSettings


class VerifierSettings(ReplicaSettings):
    """As `ReplicaSettings`, from variables such as ADASD_VERIFIER_MODEL and ADASD_VERIFIER_RUNTIME__THREADS.

    run_ahead: begin a session's next round before it is asked for, where it will hardly bring candidates. None: unless
    the model computes on all cores of this machine, which then have nothing to do it with: what the services do
    meanwhile would hold its passes up by more than is won.
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
        threads = self.runtime.threads
        on_cores = self.runtime.device == "cpu" and not is_toy(self.model)
        return not on_cores or (threads is not None and threads < cores())


def cores() -> int:
    """Of this machine that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
