"""Where a training stands, on disk: replaced as a whole, so a kill at any moment leaves the last one or the next."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_map


@dataclass(slots=True)
class Progress:
    """steps done, positions scored, seconds spent, and the curve so far: one mapping of figures a point."""

    step: int = 0
    positions: int = 0
    seconds: float = 0.0
    curve: list[dict[str, Any]] = field(default_factory=list)


def save_checkpoint(
    path: Path, progress: Progress, weights: Mapping[str, torch.Tensor], optimizer: torch.optim.Optimizer
) -> None:
    """Write everything a resumed training needs, on whatever device it goes on."""
    partial = path.with_suffix(".partial")
    whole = {
        "progress": [progress.step, progress.positions, progress.seconds, progress.curve],
        "weights": _on_host(dict(weights)),
        "optimizer": _on_host(optimizer.state_dict()),
    }
    with partial.open("wb") as stream:
        torch.save(whole, stream)
        stream.flush()
        os.fsync(stream.fileno())
    partial.rename(path)


def load_checkpoint(path: Path, weights: Mapping[str, torch.Tensor], optimizer: torch.optim.Optimizer) -> Progress:
    """Put weights and optimizer back where they were; a fresh Progress if there is no checkpoint."""
    if not path.exists():
        return Progress()
    whole = torch.load(path, map_location="cpu", weights_only=True)
    with torch.no_grad():
        for name, tensor in weights.items():
            tensor.copy_(whole["weights"][name])
    optimizer.load_state_dict(whole["optimizer"])
    return Progress(*whole["progress"])


def _on_host(kept: Any) -> Any:
    """The same with its tensors in the host's memory."""
    return tree_map(lambda leaf: leaf.detach().cpu() if isinstance(leaf, torch.Tensor) else leaf, kept)
