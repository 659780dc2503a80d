from __future__ import annotations

import torch
from torch import nn

from adasd.distill.packed import PackedLinear, pack_linears


def test_packed_layers_compute_what_the_originals_did() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(24, 40), nn.SiLU(), nn.Sequential(nn.Linear(40, 7, bias=False)))
    rows = torch.randn(5, 3, 24)
    expected = model(rows)
    assert pack_linears(model) == 2
    assert isinstance(model[0], PackedLinear)
    torch.testing.assert_close(model(rows), expected, atol=1e-5, rtol=1e-5)


def test_other_types_stay_as_they_are() -> None:
    model = nn.Sequential(nn.Linear(4, 4).bfloat16(), nn.Embedding(3, 4))
    assert pack_linears(model) == 0
    assert type(model[0]) is nn.Linear
