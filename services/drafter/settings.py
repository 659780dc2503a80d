"""The drafter's settings: ADASD_DRAFTER_*."""

from __future__ import annotations

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from services.environment import NESTED
from services.replica.settings import ReplicaSettings


class DrafterSettings(ReplicaSettings):
    """As `ReplicaSettings`, from variables such as ADASD_DRAFTER_MODEL and ADASD_DRAFTER_RUNTIME__THREADS."""

    model_config = SettingsConfigDict(
        env_prefix="ADASD_DRAFTER_", env_nested_delimiter=NESTED, env_parse_none_str="none", frozen=True
    )

    port: int = Field(50051, ge=0, le=65535)
