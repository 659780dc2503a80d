"""Logits for who reads them one by one: on the host, over the whole vocabulary."""

from __future__ import annotations

from typing import Any

import numpy as np

from adasd.core.types import FloatArray
from adasd.runtime.base import CausalRuntime


def host_rows(runtime: CausalRuntime[Any], logits: Any) -> FloatArray:
    """What `runtime` returned for a segment as float64 [rows, vocabulary]; -inf for ids that its head does not know.

    Waits for the device.
    """
    rows = np.asarray(logits.double().cpu() if hasattr(logits, "cpu") else logits, dtype=np.float64)
    columns = getattr(runtime, "columns", None)
    if columns is None:
        return rows
    full = np.full((len(rows), runtime.info().vocabulary), -np.inf)
    full[:, columns.numpy()] = rows
    return full
