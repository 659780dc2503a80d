"""Torch for tiny models."""

from __future__ import annotations

import torch

torch.set_num_threads(1)  # threads only get in one another's way at this size
