"""Machine code of tiles: small blocks of a matrix product, all their sums in registers.

Written as vectors, not left to the compiler's: so every sum is taken in the same order whatever the tile's shape, and
memory is asked for what comes next while the processor multiplies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from typing import Any

from llvmlite import binding, ir
from numba.core import cgutils, types
from numba.extending import intrinsic

LANES = 8
"""Floats of a vector of `mixture`."""


def _wide() -> bool:
    """Whether this processor has registers for 32 vectors of 16 floats, four times the usual room."""
    try:
        return bool(binding.get_host_cpu_features().get("avx512f", False))
    except RuntimeError:  # not known of every kind of processor
        return False


ROOMY = _wide()
TILE_LANES = 2 * LANES if ROOMY else LANES
"""Floats of a vector of `tile`."""

LINE = 64
"""Bytes that memory brings at a time."""

STEP = 16
"""Inputs that `tile` takes at a time, a line of floats; a matrix's inputs are a multiple of it."""

SOON = 12
"""Values by which `mixture` asks memory for them before it adds them."""

FLOAT, LONG, INT = ir.FloatType(), ir.IntType(64), ir.IntType(32)


@intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]
def tile(
    _context: Any, most: Any, outputs: Any, pace: Any, arrays: Any, rows: Any, row: Any, output: Any, ahead: Any
) -> Any:
    """out[row + r, output + o] = scale[output + o] * sum_i weight[output + o, i] x[row + r, i]; r < rows, o < outputs.

    most, outputs, pace: literals; rows times outputs and the fewer of them are vectors that want a register each.
    rows: 1 to `most`; a tile's shape is part of its code, so there is one for each. arrays: weight, float32 or int8
    [.., inputs]; x, float32 [.., inputs]; scale, float32 [..]; out, float32 [.., ..]. ahead: at input i memory is asked
    for the weights from number ahead + i pace on, as many as `pace` for every input.
    """
    shapes = [(number, outputs.literal_value) for number in range(1, most.literal_value + 1)]
    signature = types.void(most, outputs, pace, arrays, *[types.intp] * 4)
    return signature, _generator(partial(_Tile, pace.literal_value), shapes)


@intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]
def mixture(_context: Any, most: Any, vectors: Any, arrays: Any, rows: Any, row: Any, column: Any, count: Any) -> Any:
    """out[row + r, column + c] = scale[row + r] * sum_j shares[row + r, j] values[j, column + c], over j < count;
    r < rows, c < LANES vectors.

    most, vectors: literals. rows: 1 to `most`. arrays, float32: shares [.., count or more]; values [count or more, ..];
    scale [..]; out [.., as wide as values]. count: at least 1.
    """
    shapes = [(number, vectors.literal_value) for number in range(1, most.literal_value + 1)]
    return types.void(most, vectors, arrays, *[types.intp] * 4), _generator(_Mixture, shapes)


def _generator(
    kind: Callable[[Any, tuple[int, int], list[Any]], _Tile | _Mixture], shapes: Sequence[tuple[int, int]]
) -> Callable[[Any, Any, Any, Any], Any]:
    """Writes the code of a call, whose last five arguments are the arrays, which of the shapes, from 1 on, and three
    numbers.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kinds, values = signature.args[-5], cgutils.unpack_tuple(builder, arguments[-5])
        arrays = [context.make_array(kind)(context, builder, value) for kind, value in zip(kinds, values, strict=True)]
        blocks = [builder.append_basic_block("shape") for _ in shapes]
        after = builder.append_basic_block("shaped")
        choice = builder.switch(arguments[-4], after)
        for number, (shape, block) in enumerate(zip(shapes, blocks, strict=True), 1):
            choice.add_case(LONG(number), block)
            builder.position_at_end(block)
            kind(builder, shape, arrays).write(*arguments[-3:])
            builder.branch(after)
        builder.position_at_end(after)
        return context.get_dummy_value()

    return generate


def _size(element: Any) -> int:
    """Bytes of a number of floats or of bytes."""
    return 4 if element == FLOAT else int(element.width) // 8


class _Sums:
    """A vector of sums for every one of `places`. lanes: of a vector."""

    lanes = LANES

    def __init__(self, builder: Any, shape: tuple[int, int], arrays: list[Any]) -> None:
        self._builder, self._places = builder, list(product(range(shape[0]), range(shape[1])))
        self._rows, self._columns = shape
        self._first, self._second, self._scale, self._out = arrays
        self._vector, self._whole = ir.VectorType(FLOAT, self.lanes), ir.VectorType(INT, self.lanes)

    def _added_up(self, count: Any, step: int, add: Callable[[Any, list[Any]], list[Any]]) -> list[Any]:
        """Every place's sum after `add` at 0, step, 2 step and so on below `count`, which is more than 0."""
        builder = self._builder
        before = builder.block
        loop, after = builder.append_basic_block("adding"), builder.append_basic_block("added")
        builder.branch(loop)
        builder.position_at_end(loop)
        at, sums = builder.phi(LONG), [builder.phi(self._vector) for _ in self._places]
        added, end = add(at, sums), builder.add(at, LONG(step))
        for phi, start, value in zip(
            [at, *sums], [LONG(0), *[self._vector(None)] * len(sums)], [end, *added], strict=True
        ):
            phi.add_incoming(start, before)
            phi.add_incoming(value, loop)
        builder.cbranch(builder.icmp_signed("<", end, count), loop, after)
        builder.position_at_end(after)
        return added

    def _multiplied(self, rows: list[Any], columns: list[Any], sums: list[Any]) -> list[Any]:
        """Every place's sum and the product of its row's vector and its column's."""
        fused = self._intrinsic(f"llvm.fmuladd.v{self.lanes}f32", self._vector, [self._vector] * 3)
        return [
            self._builder.call(fused, [columns[c], rows[r], total])
            for (r, c), total in zip(self._places, sums, strict=True)
        ]

    def _place(self, array: Any, row: Any, column: Any) -> Any:
        """Address of an element."""
        builder = self._builder
        _, width = cgutils.unpack_tuple(builder, array.shape)
        return builder.gep(array.data, [builder.add(builder.mul(row, width), column)])

    def _load(self, address: Any) -> Any:
        """A vector of floats, made of bytes where there are bytes."""
        builder, element = self._builder, address.type.pointee
        place = builder.bitcast(address, ir.VectorType(element, self.lanes).as_pointer())
        value = builder.load(place, align=_size(element))
        return value if element == FLOAT else builder.sitofp(builder.sext(value, self._whole), self._vector)

    def _ask(self, address: Any, count: int) -> None:
        """Of memory, for so many elements; nothing happens where there is no memory."""
        builder, anything = self._builder, ir.IntType(8).as_pointer()
        prefetch = self._intrinsic("llvm.prefetch.p0", ir.VoidType(), [anything, INT, INT, INT])
        reading, keep, data = INT(0), INT(3), INT(1)
        for number in range(0, count, LINE // _size(address.type.pointee)):
            place = builder.bitcast(builder.gep(address, [LONG(number)]), anything)
            builder.call(prefetch, [place, reading, keep, data])

    def _more(self, first: Any, count: int) -> list[Any]:
        """`first`, first + 1 and so on."""
        return [self._builder.add(first, LONG(number)) for number in range(count)]

    def _intrinsic(self, name: str, result: Any, arguments: list[Any]) -> Any:
        return cgutils.get_or_insert_function(self._builder.module, ir.FunctionType(result, arguments), name)


class _Tile(_Sums):
    lanes = TILE_LANES

    def __init__(self, pace: int, builder: Any, shape: tuple[int, int], arrays: list[Any]) -> None:
        super().__init__(builder, shape, arrays)
        self._pace = pace

    def write(self, row: Any, output: Any, ahead: Any) -> None:
        """All of it, from where the builder is."""
        builder, (weight, x) = self._builder, (self._first, self._second)
        rows, outputs = self._more(row, self._rows), self._more(output, self._columns)
        xs = [self._place(x, number, LONG(0)) for number in rows]
        weights = [self._place(weight, number, LONG(0)) for number in outputs]

        def add(at: Any, sums: list[Any]) -> list[Any]:
            next_ones = builder.gep(weight.data, [builder.add(ahead, builder.mul(at, LONG(self._pace)))])
            self._ask(next_ones, STEP * self._pace)
            for lane in range(0, STEP, self.lanes):
                i = builder.add(at, LONG(lane))
                columns = [self._load(builder.gep(address, [i])) for address in weights]
                sums = self._multiplied([self._load(builder.gep(address, [i])) for address in xs], columns, sums)
            return sums

        _, inputs = cgutils.unpack_tuple(builder, x.shape)
        totals = self._added_up(inputs, STEP, add)
        scales = [builder.load(builder.gep(self._scale.data, [number])) for number in outputs]
        for (r, o), total in zip(self._places, totals, strict=True):
            scaled = builder.fmul(self._lanes_summed(total), scales[o])
            builder.store(scaled, self._place(self._out, rows[r], outputs[o]))

    def _lanes_summed(self, vector: Any) -> Any:
        """Halves added to halves, until one is left."""
        builder, lanes = self._builder, self.lanes
        while lanes > 1:
            lanes //= 2
            low, high = (
                builder.shuffle_vector(vector, vector, ir.VectorType(INT, lanes)([*range(start, start + lanes)]))
                for start in (0, lanes)
            )
            vector = builder.fadd(low, high)
        return builder.extract_element(vector, INT(0))


class _Mixture(_Sums):
    def write(self, row: Any, column: Any, count: Any) -> None:
        """All of it, from where the builder is."""
        builder, (shares, values) = self._builder, (self._first, self._second)
        rows = self._more(row, self._rows)
        columns = [builder.add(column, LONG(LANES * number)) for number in range(self._columns)]

        def add(j: Any, sums: list[Any]) -> list[Any]:
            self._ask(self._place(values, builder.add(j, LONG(SOON)), column), LANES * self._columns)
            filled = [self._filled(builder.load(self._place(shares, number, j))) for number in rows]
            return self._multiplied(filled, [self._load(self._place(values, j, number)) for number in columns], sums)

        totals = self._added_up(count, 1, add)
        scales = [self._filled(builder.load(builder.gep(self._scale.data, [number]))) for number in rows]
        for (r, c), total in zip(self._places, totals, strict=True):
            place = builder.bitcast(self._place(self._out, rows[r], columns[c]), self._vector.as_pointer())
            builder.store(builder.fmul(total, scales[r]), place, align=4)

    def _filled(self, number: Any) -> Any:
        """A vector of one number."""
        builder = self._builder
        one = builder.insert_element(self._vector(ir.Undefined), number, INT(0))
        return builder.shuffle_vector(one, one, self._whole(None))
