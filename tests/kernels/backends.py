"""Both implementations of `adasd.core.backend.Kernels` behind one face, and ways to read a distribution through it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from adasd.core.backend import Kernels, Proposal, TargetRows
from adasd.core.draws import CounterDraws, DrawKey, Purpose
from adasd.core.host import DEFAULT_SUPPORT, HostKernels
from adasd.core.rows import PointRow
from adasd.core.types import Draft, FloatArray, Row, SamplingParams
from adasd.kernels.device import DeviceKernels


@dataclass(frozen=True)
class Backend:
    """device: logits become tensors of `dtype`. The host gets what is left of them in that dtype."""

    name: str
    device: bool
    dtype: torch.dtype = torch.float32

    def propose(self, logits: FloatArray, sampling: SamplingParams, support: int | None = DEFAULT_SUPPORT) -> Proposal:
        return self.kernels(support).propose(self.logits(logits), sampling)

    def target(self, logits: FloatArray, sampling: SamplingParams) -> TargetRows[CounterDraws]:
        return self.kernels(DEFAULT_SUPPORT).target(self.logits(logits), sampling)

    def kernels(self, support: int | None = DEFAULT_SUPPORT) -> Kernels[Any, CounterDraws]:
        return DeviceKernels(support) if self.device else HostKernels(support)

    def logits(self, logits: FloatArray) -> Any:
        with np.errstate(over="ignore"):
            tensor = torch.from_numpy(np.asarray(logits, dtype=np.float64)).to(self.dtype)
        return tensor if self.device else tensor.to(torch.float64).numpy()


HOST = Backend("host", device=False)
DEVICE = Backend("device", device=True)
BACKENDS = (HOST, DEVICE)


@dataclass(frozen=True, slots=True)
class FixedDraws(CounterDraws):
    """Every uniform is the given one."""

    value: float = 0.5

    def uniform(self, key: DrawKey) -> float:
        return self.value


def block(ids: Sequence[int], rows: Sequence[Row]) -> Draft:
    return Draft(tuple(ids), (0.0,) * len(ids), tuple(rows))


def target_probabilities(backend: Backend, logits: FloatArray, sampling: SamplingParams) -> FloatArray:
    """The warped target distribution, read off as evidence: one certain candidate for every id."""
    vocabulary = len(logits)
    target = backend.target(np.tile(logits, (vocabulary + 1, 1)), sampling)
    candidates = block(range(vocabulary), [PointRow(token) for token in range(vocabulary)])
    return np.array([evidence.p for evidence in target.evidence(candidates)])


def emitted(target: TargetRows[CounterDraws], minus: Row | None, count: int, seed: int = 0) -> list[int]:
    """`count` tokens emitted from the first row, each with a key of its own."""
    draws = CounterDraws(seed)
    return [target.emit(0, minus, DrawKey(base, 0, Purpose.EMIT), draws) for base in range(count)]
