"""What both services can be told."""

from __future__ import annotations

from typing import Literal

from pydantic import Field
from pydantic_settings import BaseSettings

from adasd.rpc.options import MAX_CANDIDATES, MAX_VOCABULARY, MessageLimits
from adasd.rpc.tls import ServerTls
from adasd.runtime.options import RuntimeOptions
from services.tracing import TracingSettings


class ReplicaSettings(BaseSettings):
    """model: `toy:...` or a model folder. port: 0 takes a free one, which the log names.

    metrics_port: of a Prometheus endpoint on the same host; none without it.
    grace_seconds: what running streams get to finish after SIGTERM. work_seconds: bound on the work for one message.
    max_streams: generations at a time. max_candidates: longest block. max_vocabulary: messages are sized for it;
    the gateway's must be the same. runtime: how to run the model. tls: towards the gateway; plain text by default.
    tracing: where spans go; none by default.
    """

    model: str
    host: str = "127.0.0.1"
    port: int = Field(ge=0, le=65535)
    metrics_port: int | None = Field(None, ge=0, le=65535)
    grace_seconds: float = Field(30.0, ge=0)
    work_seconds: float = Field(120.0, gt=0)
    max_streams: int = Field(256, ge=1)
    max_candidates: int = Field(MAX_CANDIDATES, ge=1)
    max_vocabulary: int = Field(MAX_VOCABULARY, ge=1)
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    runtime: RuntimeOptions = RuntimeOptions()
    tls: ServerTls = ServerTls()
    tracing: TracingSettings = TracingSettings()

    @property
    def limits(self) -> MessageLimits:
        return MessageLimits(self.max_vocabulary, self.max_candidates)
