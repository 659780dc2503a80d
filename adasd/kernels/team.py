"""Loops of ours on the threads that torch's products run on.

They are awake between two products, and nobody else's threads compete with them for the cores. OpenMP keeps them and
runs any function in all of them; where there is no such OpenMP the calling thread does all there is to do.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numba
import numpy as np
import torch
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic
from numpy.typing import NDArray

from adasd.kernels.compiled import ARITHMETIC, KEEPS


def _openmp() -> tuple[Any, int]:
    """(function, its argument, threads, 0) -> None, as libgomp has it, and LLVM's and Intel's for its sake; and the
    address of what lets the threads that it runs wait for each other."""
    library = ctypes.CDLL(None)
    parallel, barrier = (getattr(library, name, None) for name in ("GOMP_parallel", "GOMP_barrier"))
    if parallel is None or barrier is None:
        return None, 0
    parallel.argtypes, parallel.restype = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint), None
    return parallel, ctypes.cast(barrier, ctypes.c_void_p).value or 0


_parallel, _barrier = _openmp()

NEXT, ITEMS, FIRST = 0, 1, 2
"""Places in an order: the next item to take, how many there are, and the first number of the work's own."""

CALLS, BARRIER, BEGIN, AGAIN = range(FIRST, FIRST + 4)
"""Places in the order of `_run`: addresses; BARRIER is 0 where a thread is alone, AGAIN where once is enough."""


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

    @property
    def address(self) -> int:
        """Of its machine code."""
        return int(self._compiled.address)

    def __call__(self, order: Order) -> None:
        """Until all of it is done. A single item needs nobody else."""
        order.numbers[NEXT] = 0
        self.on(threads() if order.numbers[ITEMS] > 1 else 1, order)

    def on(self, team: int, order: Order) -> None:
        """Run it in so many threads, whatever the order holds."""
        if team == 1:
            self._compiled.ctypes(order.address)
        else:
            _parallel(self.address, order.address, team, 0)


Step = tuple[Shared, tuple[int, ...]]
"""A work, and its order's numbers from ITEMS on."""


class Program:
    """Works that follow one another without a word of Python in between: all threads have done one before the next
    begins.

    numbers: int64 [steps, ..], the orders themselves, which may be changed between two runs. For one thread at a time.
    """

    def __init__(self, steps: Sequence[Step]) -> None:
        longest = max((len(own) for _, own in steps), default=0)
        self.numbers = np.zeros((len(steps), ITEMS + longest), dtype=np.int64)
        for row, (_, own) in zip(self.numbers, steps, strict=True):
            row[ITEMS : ITEMS + len(own)] = own
        orders = self.numbers.ctypes.data + self.numbers.strides[0] * np.arange(len(steps))
        self._calls = np.array([(work.address, order) for (work, _), order in zip(steps, orders, strict=True)])

    def run(self, first: int, last: int) -> None:
        """Steps `first` to `last` - 1."""
        self.numbers[first:last, NEXT] = 0
        self._run(self._calls[first:last])

    def repeat(self, begin: int, again: NDArray[np.int64]) -> None:
        """From step `begin` to the last one, and then all of them for as long as `again` is not 0 behind the last.

        again: [1]. A step that is run again must find its order's NEXT at 0.
        """
        self.numbers[:, NEXT] = 0
        self._run(self._calls, begin, again.ctypes.data)

    def _run(self, calls: NDArray[np.int64], begin: int = 0, again: int = 0) -> None:
        team = threads()
        _run.on(team, Order(len(calls), calls.ctypes.data, _barrier if team > 1 else 0, begin, again))


def threads() -> int:
    """In which `Shared` work is run."""
    return 1 if _parallel is None else torch.get_num_threads()


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


@intrinsic  # type: ignore[untyped-decorator]
def call(_context: Any, function: Any, arguments: Any) -> Any:
    """The function at an address, of so many numbers, without a result."""

    def generate(context: Any, builder: Any, _signature: Any, given: Any) -> Any:
        numbers = cgutils.unpack_tuple(builder, given[1])
        kind = ir.FunctionType(ir.VoidType(), [number.type for number in numbers])
        builder.call(builder.inttoptr(given[0], kind.as_pointer()), numbers)
        return context.get_dummy_value()

    return types.void(function, arguments), generate


@Shared
def _run(address: int) -> None:
    """An item is a step, for all threads."""
    what = numba.carray(pointer(address), AGAIN + 1, np.int64)
    calls = numba.carray(pointer(what[CALLS]), (what[ITEMS], 2), np.int64)
    again = numba.carray(pointer(what[AGAIN]), 1, np.int64)
    first, more = what[BEGIN], True
    while more:
        for step in range(first, len(calls)):
            call(calls[step, 0], (calls[step, 1],))
            if what[BARRIER] != 0 and (step + 1 < len(calls) or what[AGAIN] != 0):
                call(what[BARRIER], ())
        first, more = 0, what[AGAIN] != 0 and again[0] != 0
