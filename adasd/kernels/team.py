"""Loops of ours on the threads that torch's products run on.

They are awake between two products, and nobody else's threads compete with them for the cores. OpenMP keeps them and
runs any function in all of them; where there is no such OpenMP the calling thread does all there is to do.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cached_property
from typing import Any

import numba
import numpy as np
import torch
from numba.core import cgutils, types
from numba.extending import intrinsic
from numpy.typing import NDArray

from adasd.kernels.compiled import ARITHMETIC, KEEPS


def _openmp() -> Any:
    """(function, its argument, threads, 0) -> None, as libgomp has it, and LLVM's and Intel's for its sake."""
    found = getattr(ctypes.CDLL(None), "GOMP_parallel", None)
    if found is not None:
        found.argtypes, found.restype = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint), None
    return found


_parallel = _openmp()

NEXT, ITEMS, FIRST = 0, 1, 2
"""Places in an order: the next item to take, how many there are, and the first number of the work's own."""


class Order:
    """What `Shared` work is told. numbers: its own, from FIRST on: sizes, and addresses of what outlives the order."""

    def __init__(self, items: int, *numbers: int) -> None:
        self.numbers: NDArray[np.int64] = np.array([0, items, *numbers], dtype=np.int64)
        self.address = self.numbers.ctypes.data


class Shared:
    """Work on an order's items that several threads share: all of them run it, each until nothing is left.

    work: (address of the order's numbers) -> None, compiled by numba; takes its items by `taken`.
    """

    def __init__(self, work: Callable[[int], None]) -> None:
        self._work = work

    @cached_property
    def _compiled(self) -> Any:
        signature = types.void(types.intp)
        return numba.cfunc(signature, nopython=True, cache=KEEPS, fastmath=ARITHMETIC)(self._work)

    def __call__(self, order: Order) -> None:
        """Until all of it is done. A single item needs nobody else."""
        order.numbers[NEXT] = 0
        threads = 1 if _parallel is None or order.numbers[ITEMS] <= 1 else torch.get_num_threads()
        if threads == 1:
            self._compiled.ctypes(order.address)
        else:
            _parallel(self._compiled.address, order.address, threads, 0)


@intrinsic  # type: ignore[untyped-decorator]
def pointer(_context: Any, address: Any) -> Any:
    """An address as a pointer, of which `numba.carray` makes an array."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], cgutils.voidptr_t)

    return types.voidptr(address), generate


@intrinsic  # type: ignore[untyped-decorator]
def taken(_context: Any, address: Any) -> Any:
    """The next item of the order at an address, which nobody else gets; from its ITEMS on there is none left."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        number = cgutils.intp_t
        return builder.atomic_rmw("add", builder.inttoptr(arguments[0], number.as_pointer()), number(1), "monotonic")

    return types.intp(address), generate
