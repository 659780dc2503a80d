"""Products with a matrix by the compiled loops, against torch's, to the last bit the same in whatever company."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from adasd.kernels import team
from adasd.kernels.products import AT_ONCE, FEW, MOST, ROWS, TALL, Matrix
from tests.threads import threads_of_torch

SHAPES = [(1, 1), (5, 3), (4, 16), (MOST, 64), (MOST + 1, 100), (5 * MOST - 1, 577)]
"""Outputs and inputs."""


@pytest.fixture(params=[1, 2, 5], autouse=True)
def threads(request: pytest.FixtureRequest) -> Iterator[None]:
    with threads_of_torch(request.param):
        yield


def random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    "rows", [0, 1, FEW, FEW + 1, TALL, TALL + 1, AT_ONCE, AT_ONCE + 1, ROWS + 1, 2 * ROWS + TALL + 3]
)
def test_of_floats_it_is_the_library_s(shape: tuple[int, int], rows: int) -> None:
    weight, x = random(*shape), random(rows, shape[1])
    torch.testing.assert_close(Matrix(weight)(x), x @ weight.T, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("shape", SHAPES)
def test_of_bytes_every_output_has_its_scale(shape: tuple[int, int]) -> None:
    weight = torch.randint(-127, 128, shape, dtype=torch.int8, generator=torch.Generator().manual_seed(0))
    scale, x = random(shape[0]), random(6, shape[1])
    expected = x.double() @ (weight.double() * scale.double()[:, None]).T
    torch.testing.assert_close(Matrix(weight, scale)(x).double(), expected, rtol=1e-4, atol=1e-2)


@pytest.mark.parametrize("rows", [1, FEW + 1, 70])
def test_a_bias_is_added(rows: int) -> None:
    weight, bias, x = random(MOST + 5, 30), random(MOST + 5), random(rows, 30)
    assert torch.equal(Matrix(weight, bias=bias)(x), Matrix(weight)(x) + bias)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int8])
def test_a_row_s_result_is_its_own(dtype: torch.dtype) -> None:
    matrix, x = Matrix((100 * random(71, 300)).to(dtype)), random(ROWS + 6, 300)
    alone = torch.cat([matrix(row[None]) for row in x])
    for count in range(1, len(x) + 1):
        assert torch.equal(matrix(x[:count]), alone[:count])


def test_what_is_no_number_stays_in_its_row() -> None:
    x = random(6, 40)
    x[2, 7], x[4, 0] = torch.nan, torch.inf
    out = Matrix(random(50, 40))(x)
    assert out[2].isnan().all()
    assert out[4].isinf().all()
    assert out[[0, 1, 3, 5]].isfinite().all()


def test_without_openmp_the_caller_multiplies(monkeypatch: pytest.MonkeyPatch) -> None:
    weight, x = random(3 * MOST, 20), random(5, 20)
    shared = Matrix(weight)(x)
    monkeypatch.setattr(team, "_parallel", None)
    assert torch.equal(Matrix(weight)(x), shared)


def test_weights_may_lie_anywhere() -> None:
    """Transposed ones are copied; a matrix keeps what it points to."""
    weight, x = random(20, 70).T, random(3, 20)
    matrix = Matrix(weight.clone().T.contiguous().T)
    torch.testing.assert_close(matrix(x), x @ weight.T, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("x", [random(3, 20).double(), random(20, 3).T, random(3, 21)])
def test_what_it_would_misread_is_refused(x: torch.Tensor) -> None:
    with pytest.raises(AssertionError):
        Matrix(random(4, 20))(x)
