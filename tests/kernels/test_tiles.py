"""Tiles are as wide as the processor's vectors, and right in either width."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from llvmlite import binding

from adasd.kernels import tiles


@pytest.mark.parametrize(("features", "wide"), [({"avx512f": True}, True), ({"avx512f": False}, False), ({}, False)])
def test_tiles_are_as_wide_as_the_processor_s_vectors(
    monkeypatch: pytest.MonkeyPatch, features: dict[str, bool], wide: bool
) -> None:
    monkeypatch.setattr(binding, "get_host_cpu_features", lambda: features)
    assert tiles._wide() is wide


def test_a_processor_that_tells_nothing_has_narrow_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown() -> Any:
        raise RuntimeError("not for this kind")

    monkeypatch.setattr(binding, "get_host_cpu_features", unknown)
    assert not tiles._wide()


OTHER_TILES = """
import numba, torch
from llvmlite import binding

real, binding.get_host_cpu_features = binding.get_host_cpu_features, lambda: {"avx512f": WIDE}
from adasd.kernels import tiles
binding.get_host_cpu_features = real
from adasd.kernels.products import AT_ONCE, FEW, MOST, ROWS, TALL, Matrix

assert tiles.ROOMY is WIDE
torch.manual_seed(0)
for shape in ((5, 3), (MOST + 1, 100)):
    weight, scale, x = torch.randn(shape), torch.rand(shape[0]), torch.randn(2 * ROWS + TALL + 3, shape[1])
    for matrix in (weight, (40 * weight).to(torch.int8)):
        product, expected = Matrix(matrix, scale), x.double() @ (matrix.double() * scale.double()[:, None]).T
        for rows in (1, FEW, FEW + 1, TALL, TALL + 1, AT_ONCE, AT_ONCE + 1, ROWS + 1, len(x)):
            torch.testing.assert_close(product(x[:rows]).double(), expected[:rows], rtol=1e-4, atol=1e-2)
            assert torch.equal(product(x[:rows])[0], product(x[:1])[0])
print("alike")
"""


def test_tiles_of_the_other_width_multiply_too(tmp_path: Path) -> None:
    """What other processors get, on this one: vectors that it lacks are made of those it has."""
    script = f"WIDE = {not tiles.ROOMY}\n{OTHER_TILES}"
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}
    run = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert run.stdout == "alike\n", run.stderr
