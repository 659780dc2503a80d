"""The verifier's settings: ADASD_VERIFIER_*."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from pydantic import Field, model_validator
from pydantic_settings import SettingsConfigDict

from adasd.runtime.options import RuntimeOptions
from adasd.runtime.ranks import Ranks
from adasd.runtime.toy import is_toy
from services.environment import NESTED
from services.replica.settings import ReplicaSettings


class VerifierSettings(ReplicaSettings):
    """As `ReplicaSettings`, from variables such as ADASD_VERIFIER_MODEL and ADASD_VERIFIER_RUNTIME__THREADS.

    run_ahead: begin a session's next round before it is asked for, where it will hardly bring candidates. None: unless
    the models compute on all cores of this machine: what the services do meanwhile would hold their passes up by more
    than is won. On a CPU they are taken to, unless `threads` of all ranks here leave one core and nobody shares them.
    draft: a draft model to serve in the same process, at the same address: gateways whose drafter it is have a block
    drafted and judged for one message. draft_runtime: how to run it. Both models take turns on one thread; it is a
    student of the target unless it is told otherwise.
    """

    model_config = SettingsConfigDict(
        env_prefix="ADASD_VERIFIER_", env_nested_delimiter=NESTED, env_parse_none_str="none", frozen=True
    )

    port: int = Field(50052, ge=0, le=65535)
    run_ahead: bool | None = None
    draft: str | None = None
    draft_runtime: RuntimeOptions = RuntimeOptions()

    @model_validator(mode="after")
    def _fit(self) -> VerifierSettings:
        own = self.draft_runtime
        if self.draft is None and own != RuntimeOptions():
            raise ValueError("draft_runtime is of no use without draft")
        if own.threads is not None or own.shared_cores is not None:
            raise ValueError("threads and shared_cores of draft_runtime are the process's: set those of runtime")
        return self

    @property
    def drafting(self) -> RuntimeOptions:
        """How to run the draft model."""
        own, target = self.draft_runtime, None if is_toy(self.model) else Path(self.model)
        cores = self.runtime.threads, self.runtime.shared_cores
        return replace(own, threads=cores[0], shared_cores=cores[1], target=own.target or target)

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
