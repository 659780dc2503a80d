"""How to run a model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from adasd.core.errors import InvalidRequest
from adasd.core.host import DEFAULT_SUPPORT

Role = Literal["draft", "target"]
Dtype = Literal["float32", "bfloat16", "float16", "int8"]
Passes = Literal["ragged", "static"]


@dataclass(frozen=True, slots=True)
class RuntimeOptions:
    """How to run a model, whichever it is; of a toy only `support` and `context_length` apply.

    device: as torch names it. threads: of torch on the CPU, in the whole process; None leaves them as they are.
    dtype: of weights and products. On the CPU models of the Llama family keep everything else in float32, and may have
    weights of 8 bits (int8), which others may not. None: on the CPU float32, and int8 for drafts that may; elsewhere
    the folder's own.
    passes: ragged ones hold a pass's tokens and no others; static ones have few shapes, which on CUDA are recorded as
    graphs, and a slot of KV for each session, as long as the context. None: static on CUDA, if eight fit, else ragged.
    compiled: have torch compile static passes, by shape.
    prefill_chunk: positions of prompts read at a time; running_chunk: the same beside running streams.
    kv_positions: positions of KV for all sessions together; None: as many as half the free memory holds.
    idle_sessions: whose KV is kept when their stream has ended, for others that begin alike.
    support: entries of a draft row; None sends the whole vocabulary.
    context_length: positions to serve, at most what the model attends to; None serves them all.
    heartbeat_seconds: a rank of a tensor-parallel model that is silent for so long is lost, and its group starts again.
    shared_cores: file that this process locks for every pass, as do the others on its cores; None has them alone.
    target: folder of the model a student was trimmed from; read only for what the student's own folder lacks.
    """

    device: str = "cpu"
    dtype: Dtype | None = None
    passes: Passes | None = None
    compiled: bool = False
    threads: int | None = None
    prefill_chunk: int = 256
    running_chunk: int = 64
    kv_positions: int | None = None
    idle_sessions: int = 32
    support: int | None = DEFAULT_SUPPORT
    context_length: int | None = None
    heartbeat_seconds: int = 4
    shared_cores: Path | None = None
    target: Path | None = None

    def __post_init__(self) -> None:
        positive = ("threads", "prefill_chunk", "running_chunk", "kv_positions", "support", "context_length")
        for name in (*positive, "heartbeat_seconds"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InvalidRequest(f"{name} must be at least 1, got {value}", name)
        if self.compiled and not self.static_passes:
            raise InvalidRequest(f"compiled needs passes=static, which is not the default on {self.device}", "compiled")

    @property
    def static_passes(self) -> bool:
        """Whether passes are static."""
        return self.passes == "static" or (self.passes is None and self.device.startswith("cuda"))

    def served(self, attended: int) -> int:
        """Positions to serve of a model that attends to `attended`."""
        if self.context_length is None:
            return attended
        if self.context_length > attended:
            raise InvalidRequest(
                f"context_length {self.context_length} is more than the {attended} positions the model attends to",
                "context_length",
            )
        return self.context_length
