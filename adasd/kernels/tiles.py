"""Machine code of a tile: some rows times some outputs of a matrix, all their sums in registers.

Written as vectors, not left to the compiler's: so every sum is taken in the same order whatever the tile's shape, and
memory is asked for what comes next while the processor multiplies.
"""

from __future__ import annotations

from itertools import product
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

LANES = 8
"""Floats of a vector."""

STEP = 16
"""Inputs of a step, a cache line of floats; a matrix's inputs are a multiple of it."""

FLOAT, LONG, INT = ir.FloatType(), ir.IntType(64), ir.IntType(32)
VECTOR, WHOLE = ir.VectorType(FLOAT, LANES), ir.VectorType(INT, LANES)


@intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]
def tile(_context: Any, rows: Any, outputs: Any, arrays: Any, row: Any, output: Any, ahead: Any, pace: Any) -> Any:
    """out[row + r, output + o] = scale[output + o] * sum_i weight[output + o, i] x[row + r, i]; r < rows, o < outputs.

    rows, outputs: literals; their product and the smaller one together are vectors that want a register each. arrays:
    weight, float32 or int8 [.., inputs]; x, float32 [.., inputs]; scale, float32 [..]; out, float32 [.., ..]. ahead,
    pace: when input i is multiplied memory is asked for the matrix's weight number ahead + i pace; once a step.
    """
    signature = types.void(rows, outputs, arrays, *[types.intp] * 4)
    shape = rows.literal_value, outputs.literal_value

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kinds, values = signature.args[2], cgutils.unpack_tuple(builder, arguments[2])
        structs = (context.make_array(kind)(context, builder, value) for kind, value in zip(kinds, values, strict=True))
        _Tile(builder, shape, *structs).write(*arguments[3:])
        return context.get_dummy_value()

    return signature, generate


class _Tile:
    """shape: rows and outputs. weight, x, scale, out: numba's arrays."""

    def __init__(self, builder: Any, shape: tuple[int, int], weight: Any, x: Any, scale: Any, out: Any) -> None:
        self._builder, (self._rows, self._outputs) = builder, shape
        self._weight, self._x, self._scale, self._out = weight, x, scale, out
        self._places = list(product(range(self._rows), range(self._outputs)))
        _, self._inputs = cgutils.unpack_tuple(builder, x.shape)

    def write(self, row: Any, output: Any, ahead: Any, pace: Any) -> None:
        """All of it, from where the builder is."""
        xs = [self._row(self._x, row, r) for r in range(self._rows)]
        weights = [self._row(self._weight, output, o) for o in range(self._outputs)]
        self._store(self._sums(xs, weights, (ahead, pace)), row, output)

    def _row(self, array: Any, first: Any, number: int) -> Any:
        """Address of a row's first element."""
        index = self._builder.add(first, LONG(number))
        return self._builder.gep(array.data, [self._builder.mul(index, self._inputs)])

    def _sums(self, xs: list[Any], weights: list[Any], ahead: tuple[Any, Any]) -> list[Any]:
        """A vector of partial sums for every place, of as many rounds as there are steps in the inputs."""
        builder = self._builder
        before = builder.block
        loop, after = builder.append_basic_block("tile"), builder.append_basic_block("tiled")
        builder.branch(loop)
        builder.position_at_end(loop)
        at, sums = builder.phi(LONG), [builder.phi(VECTOR) for _ in self._places]
        self._ask(at, *ahead)
        added = sums
        for lane in range(0, STEP, LANES):
            added = self._add(xs, weights, builder.add(at, LONG(lane)), added)
        end = builder.add(at, LONG(STEP))
        for phi, start, value in zip([at, *sums], [LONG(0), *[VECTOR(None)] * len(sums)], [end, *added], strict=True):
            phi.add_incoming(start, before)
            phi.add_incoming(value, loop)
        builder.cbranch(builder.icmp_signed("<", end, self._inputs), loop, after)
        builder.position_at_end(after)
        return added

    def _add(self, xs: list[Any], weights: list[Any], at: Any, sums: list[Any]) -> list[Any]:
        """The products of one vector of inputs to every place's sum."""
        loaded = [self._load(weight, at) for weight in weights]
        rows = [self._load(x, at) for x in xs]
        fused = self._intrinsic(f"llvm.fmuladd.v{LANES}f32", VECTOR, [VECTOR] * 3)
        return [
            self._builder.call(fused, [loaded[o], rows[r], total])
            for (r, o), total in zip(self._places, sums, strict=True)
        ]

    def _load(self, address: Any, at: Any) -> Any:
        """A vector of floats, made of bytes where there are bytes."""
        builder, element = self._builder, address.type.pointee
        place = builder.bitcast(builder.gep(address, [at]), ir.VectorType(element, LANES).as_pointer())
        value = builder.load(place, align=element.width // 8 if isinstance(element, ir.IntType) else 4)
        return value if element == FLOAT else builder.sitofp(builder.sext(value, WHOLE), VECTOR)

    def _ask(self, at: Any, ahead: Any, pace: Any) -> None:
        """Of memory, for a cache line; nothing happens where there is no memory."""
        builder, anything = self._builder, ir.IntType(8).as_pointer()
        place = builder.gep(self._weight.data, [builder.add(ahead, builder.mul(at, pace))])
        prefetch = self._intrinsic("llvm.prefetch.p0", ir.VoidType(), [anything, INT, INT, INT])
        reading, keep, data = INT(0), INT(3), INT(1)
        builder.call(prefetch, [builder.bitcast(place, anything), reading, keep, data])

    def _store(self, sums: list[Any], row: Any, output: Any) -> None:
        builder = self._builder
        _, width = cgutils.unpack_tuple(builder, self._out.shape)
        columns = [builder.add(output, LONG(o)) for o in range(self._outputs)]
        scales = [builder.load(builder.gep(self._scale.data, [column])) for column in columns]
        for (r, o), total in zip(self._places, sums, strict=True):
            start = builder.mul(builder.add(row, LONG(r)), width)
            place = builder.gep(self._out.data, [builder.add(start, columns[o])])
            builder.store(builder.fmul(self._lanes_summed(total), scales[o]), place)

    def _lanes_summed(self, vector: Any) -> Any:
        """Halves added to halves, until one is left."""
        builder, lanes = self._builder, LANES
        while lanes > 1:
            lanes //= 2
            low, high = (
                builder.shuffle_vector(vector, vector, ir.VectorType(INT, lanes)([*range(start, start + lanes)]))
                for start in (0, lanes)
            )
            vector = builder.fadd(low, high)
        return builder.extract_element(vector, INT(0))

    def _intrinsic(self, name: str, result: Any, arguments: list[Any]) -> Any:
        return cgutils.get_or_insert_function(self._builder.module, ir.FunctionType(result, arguments), name)
