"""The pretended accelerator pretends well enough to find what a real one would."""

from __future__ import annotations

import numpy as np
import pytest
import torch


def test_it_computes(elsewhere: torch.device) -> None:
    weights = torch.nn.Linear(3, 2).to(elsewhere)
    rows = torch.arange(6.0, device=elsewhere).view(2, 3)
    out = weights(rows)
    assert out.device == elsewhere
    (gradient,) = torch.autograd.grad(out.sum(), [weights.bias])
    assert gradient.tolist() == [2.0, 2.0]
    rows[torch.tensor([1])] += 1  # a device takes the host's indices
    assert rows.cpu()[1].tolist() == [4.0, 5.0, 6.0]


def test_it_keeps_to_itself(elsewhere: torch.device) -> None:
    far, near = torch.zeros(3, device=elsewhere), torch.zeros(3)
    for mix in (lambda: far + near, lambda: near.add_(far), lambda: torch.where(far > 0, near, far)):
        with pytest.raises(RuntimeError):
            mix()
    with pytest.raises((RuntimeError, TypeError)):
        np.asarray(far)
    with pytest.raises(RuntimeError):
        far.data_ptr()
