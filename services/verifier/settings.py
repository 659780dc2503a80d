"""The verifier's settings: ADASD_VERIFIER_*."""

from __future__ import annotations

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from services.environment import NESTED
from services.replica.settings import ReplicaSettings


class VerifierSettings(ReplicaSettings):
    """As `ReplicaSettings`, from variables such as ADASD_VERIFIER_MODEL and ADASD_VERIFIER_RUNTIME__THREADS."""

    model_config = SettingsConfigDict(
        env_prefix="ADASD_VERIFIER_", env_nested_delimiter=NESTED, env_parse_none_str="none", frozen=True
    )

    port: int = Field(50052, ge=0, le=65535)
