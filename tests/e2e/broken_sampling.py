"""The verifier as if penalties, biases and bans were the draft's alone, and top_p came before top_k: what the
distribution test must see.
"""

from __future__ import annotations

import runpy
from dataclasses import replace
from typing import Any

from adasd.core import processing, sampling
from adasd.core.types import FloatArray, SamplingParams

right = sampling.warp


def unprocessed(*_: Any) -> None:
    """In place of `Processor.edits`."""


def swapped(logits: FloatArray, params: SamplingParams) -> FloatArray:
    first = right(logits, replace(params, top_k=0))
    kept = sorted(first)[-params.top_k :][0] if params.top_k else 0.0
    masked: FloatArray = first * (first >= kept)
    return masked / masked.sum()


processing.Processor.edits = unprocessed  # type: ignore[assignment]
sampling.warp = swapped
runpy.run_module("services.verifier", run_name="__main__")
