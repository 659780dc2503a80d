"""A decoder as one program, from ids to logits: what is compiled runs without a word of Python in between.

Products of a library, and its attention for long pieces of a prompt, come between two parts of the program.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adasd.kernels import products
from adasd.kernels.follow import POSITION, Follower
from adasd.kernels.products import Matrix
from adasd.kernels.team import ITEMS, Program, Step
from adasd.runtime import fused, pointwise
from adasd.runtime.attention import Attention, Span, attend
from adasd.runtime.fused import Sweep
from adasd.runtime.kv import SessionKV
from adasd.runtime.linear import Product

_FIRST = np.zeros(1, dtype=np.int64)
"""Of a pass over one token, whose logits are wanted."""

LAST = "last "
"""Of what comes after the last layer's attention: nobody needs it but for the logits."""

Part = Callable[[], None]
Places = tuple[NDArray[np.int64], NDArray[np.int64]]
"""Steps, and where in the order of each."""


@dataclass(frozen=True, slots=True)
class Layer:
    """One decoder layer. qkv, gate_up: products of several matrices at once."""

    attention_norm: Tensor
    qkv: Product
    output: Product
    feed_forward_norm: Tensor
    gate_up: Product
    down: Product


class Sizes(NamedTuple):
    """hidden, between: widths of the residual stream and of the feed-forward layers. heads, key_heads: of `width`."""

    hidden: int
    between: int
    heads: int
    key_heads: int
    width: int

    def buffers(self) -> dict[str, int]:
        """What a pass needs room for, a row a token: widths. nothing: zeros, which the first norm adds. LAST: of the
        tokens whose logits are wanted."""
        stream = dict.fromkeys(("x", "added", "normed"), self.hidden)
        inner = stream | {"read": self.heads * self.width, "both": 2 * self.between, "gated": self.between}
        qkv = (self.heads + 2 * self.key_heads) * self.width
        return inner | {LAST + name: width for name, width in inner.items()} | {"nothing": self.hidden, "qkv": qkv}


@dataclass(frozen=True, slots=True)
class Weights:
    """embedding: float32 [vocabulary, hidden]. norm: the last one's, [hidden]. head: logits of a hidden state, `width`
    of them."""

    embedding: Tensor
    layers: Sequence[Layer]
    norm: Tensor
    head: Product
    width: int


class Stack:
    """All of a decoder. rotations: float32 [positions, width / 2, 2]. For one thread at a time.

    follower: what comes behind a pass; `ready` is for such a stack only, `read` for all others.
    """

    def __init__(
        self,
        weights: Weights,
        sizes: Sizes,
        epsilon: float,
        rotations: NDArray[np.float32],
        follower: Follower | None = None,
    ) -> None:
        assert weights.embedding.dtype == torch.float32, "it is told by its address"
        assert weights.embedding.is_contiguous(), "likewise"
        self._weights, self._sizes, self._kind = weights, sizes, Attention(sizes.width**-0.5)
        self._rotations = np.ascontiguousarray(rotations, dtype=np.float32)
        self._epsilon, self._scale = (np.array([one], dtype=np.float32) for one in (epsilon, self._kind.scale))
        plan, self._follower = self._planned(), follower
        if follower is not None:
            for step in follower.steps[:-1]:
                plan.step(step, {})
            plan.step(follower.steps[-1], {"position": POSITION})
        self._program, self._places = Program(plan.steps), plan.arrays()
        self._brief, self._whole = (list(plan.parts(self._program.run, long)) for long in (False, True))
        self._buffers = {name: torch.zeros(0) for name in sizes.buffers()}
        self._rows: dict[str, Tensor] = {}
        self._many: Sequence[Span] = ()
        self._counts = 0, 0
        self._set("table", weights.embedding.data_ptr())

    @property
    def is_whole(self) -> bool:
        """Whether nothing parts the program of a token."""
        return len(self._brief) == 1 and fused.suits(self._sizes.width)

    def ready(self, kv: SessionKV) -> Program:
        """To read what the follower tells, into a session's KV, which must have room; its length is left to the caller.

        Good until the next one is ready.
        """
        assert self._follower is not None, "nothing follows"
        self._sweep = Sweep([Span(kv, 0, 1)], self._sizes.key_heads, self._sizes.width)
        self._fit(1, 1)
        self._set("ids", self._follower.id.ctypes.data)
        self._set("which", _FIRST.ctypes.data)
        self._set("logits", self._follower.logits.ctypes.data)
        self._set("position", self._sweep.first_length)
        for name, number in self._sweep.numbers():
            self._set(name, number)
        return self._program

    def read(self, ids: Sequence[int], spans: Sequence[Span], rows: Sequence[int]) -> Tensor:
        """Logits of some of the tokens, [rows, width]; writes the spans' KV. ids: of all spans' tokens.

        Raises IndexError for an id without an embedding.
        """
        logits = torch.empty(len(rows), self._weights.width)
        if not ids:
            return logits
        numbers, sweep = np.array([*ids, *rows]), Sweep(spans, self._sizes.key_heads, self._sizes.width)
        if numbers[: len(ids)].min() < 0 or numbers[: len(ids)].max() >= len(self._weights.embedding):
            raise IndexError(f"an id is not within [0, {len(self._weights.embedding)})")
        self._fit(len(ids), len(rows))
        self._set("ids", numbers.ctypes.data)
        self._set("which", numbers[len(ids) :].ctypes.data)
        self._set("logits", logits.data_ptr())
        for name, number in sweep.numbers():
            self._set(name, number)
        self._rows["logits"], self._many = logits, sweep.many
        for part in self._whole if sweep.many else self._brief:
            part()
        return self._rows["logits"]

    def _planned(self) -> _Plan:
        plan, weights, hidden = _Plan(), self._weights, self._sizes.hidden
        embedded = {"table": pointwise.TABLE, "ids": pointwise.WHICH, "x": pointwise.CHOSEN}
        plan.step(pointwise.choice(hidden), embedded | {"tokens": pointwise.COUNT, "blocks": ITEMS})
        for index, layer in enumerate(weights.layers):
            self._add_attention(plan, index, layer)
            if index == len(weights.layers) - 1:
                self._add_choice(plan, "x", hidden)
                self._add_choice(plan, "read", self._sizes.heads * self._sizes.width)
            self._add_rest(plan, layer, LAST if index == len(weights.layers) - 1 else "")
        self._add_norm(plan, LAST, "added", weights.norm)
        self._add_product(plan, weights.head, LAST, "normed", "logits")
        return plan

    def _add_choice(self, plan: _Plan, name: str, width: int) -> None:
        """Of the tokens whose logits are wanted."""
        places = {name: pointwise.TABLE, "which": pointwise.WHICH, LAST + name: pointwise.CHOSEN}
        plan.step(pointwise.choice(width), places | {LAST + "tokens": pointwise.COUNT, LAST + "blocks": ITEMS})

    def _add_attention(self, plan: _Plan, index: int, layer: Layer) -> None:
        heads = self._sizes.heads, self._sizes.key_heads, self._sizes.width
        self._add_norm(plan, "", "added" if index else "nothing", layer.attention_norm)
        self._add_product(plan, layer.qkv, "", "normed", "qkv")
        plan.step(fused.read(heads, self._rotations, self._scale), fused.PLACES_OF)
        plan.call(partial(self._attend, index), long_only=True)

    def _add_rest(self, plan: _Plan, layer: Layer, which: str) -> None:
        """What comes after attention. which: LAST, or of all tokens."""
        self._add_product(plan, layer.output, which, "read", which + "added")
        self._add_norm(plan, which, "added", layer.feed_forward_norm)
        self._add_product(plan, layer.gate_up, which, "normed", which + "both")
        plan.step(pointwise.gates(self._sizes.between), _of(which, pointwise.PLACES_OF_GATES))
        self._add_product(plan, layer.down, which, "gated", which + "added")

    def _add_norm(self, plan: _Plan, which: str, addend: str, weight: Tensor) -> None:
        places = pointwise.PLACES_OF_NORM | {addend: pointwise.ADDEND}
        plan.step(pointwise.norm(weight, self._epsilon), _of(which, places))

    def _add_product(self, plan: _Plan, product: Product, which: str, source: str, target: str) -> None:
        if isinstance(product, Matrix) and product.is_whole:
            places = _of(which, {source: products.X, "tokens": products.TOKENS})
            plan.step(product.step, places | {target: products.OUT})
        else:
            plan.call(partial(self._multiply, product, which + source, target))

    def _multiply(self, product: Product, source: str, target: str) -> None:
        """By the library; whoever reads the result is told where it is."""
        out = product(self._rows[source])
        assert out.is_contiguous(), "it is told by its address"
        self._set(target, out.data_ptr())
        self._rows[target] = out

    def _attend(self, index: int) -> None:
        """For the spans that the program leaves out, by the library."""
        heads, _, width = self._sizes[2:]
        qkv, read = (self._rows[name].view(self._counts[0], -1, width) for name in ("qkv", "read"))
        for span in self._many:
            queries, kv = qkv[span.start : span.end, :heads], span.kv.read(index, span.reach)
            read[span.start : span.end] = attend(queries, *kv, self._kind).view(-1, heads, width)

    def _fit(self, tokens: int, rows: int) -> None:
        """Have the program read so many tokens, and make logits of so many of them."""
        if (tokens, rows) == self._counts:
            return
        self._counts = tokens, rows
        for which, count in (("", tokens), (LAST, rows)):
            self._set(which + "tokens", count)
            self._set(which + "blocks", pointwise.blocks(count))
        for name, width in self._sizes.buffers().items():
            count = rows if name.startswith(LAST) else tokens
            if len(self._buffers[name]) < count * width:
                self._buffers[name] = torch.zeros(count * width)
            self._rows[name] = self._buffers[name][: count * width].view(count, width)
            self._set(name, self._buffers[name].data_ptr())

    def _set(self, name: str, numbers: int | NDArray[np.int64]) -> None:
        """Wherever it is asked for, which may be nowhere: products of the library ask for nothing."""
        if (places := self._places.get(name)) is not None:
            self._program.numbers[places] = numbers


def _of(which: str, places: dict[str, int]) -> dict[str, int]:
    """The same places of those tokens."""
    return {which + name: place for name, place in places.items()}


class _Plan:
    """What a pass does in turn: steps of a program, and calls between them."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self._places: dict[str, list[tuple[int, int]]] = defaultdict(list)
        self._turns: list[tuple[int | Part, bool]] = []

    def step(self, step: Step, places: dict[str, int]) -> None:
        """places: in its order, of what is to be filled in, by name."""
        for name, place in places.items():
            self._places[name].append((len(self.steps), place))
        self._turns.append((len(self.steps), False))
        self.steps.append(step)

    def arrays(self) -> dict[str, Places]:
        """Where in the program's numbers everything stands that is to be filled in, by name."""
        arrays = ((name, np.array(places).T) for name, places in self._places.items())
        return {name: (steps, columns) for name, (steps, columns) in arrays}

    def call(self, part: Part, long_only: bool = False) -> None:
        """long_only: only in passes that read a long piece."""
        self._turns.append((part, long_only))

    def parts(self, run: Callable[[int, int], None], long: bool) -> Iterator[Part]:
        """Calls and runs of steps between them."""
        first = done = 0
        for turn, long_only in self._turns:
            if isinstance(turn, int):
                done = turn + 1
            elif long or not long_only:
                if done > first:
                    yield partial(run, first, done)
                yield turn
                first = done
        if done > first:
            yield partial(run, first, done)
