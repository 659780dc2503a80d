"""A decoder of transformers at few fixed shapes: what an accelerator can compile, or replay as a graph.

A pass takes [rows, tokens] over the first slots of a pool, each number the next power of two. Tokens and rows that only
fill the shape write behind the end of what counts in their slots. Short blocks of all sessions share a pass; a piece of
a prompt has one to itself, as it is: there are too many lengths, and it is long enough to be worth its calls.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, PreTrainedModel
from transformers.masking_utils import AttentionMaskInterface

from adasd.core.errors import InvalidRequest
from adasd.runtime.filing import FilingCache
from adasd.runtime.modules import check_architecture, no_mask
from adasd.runtime.slots import SlotPool, bucket

logger = logging.getLogger(__name__)

STATIC_ATTENTION = "adasd_static"
SHORT = 32
"""Tokens of a session up to which it shares a pass."""
MOST_SHAPES = 1024
SHORTEST_REACH = 256
"""Positions that attention reads at least: below this more shapes gain nothing."""


@dataclass(frozen=True, slots=True)
class Shape:
    """rows: slots from `first` on. tokens: of each. reach: positions that attention looks at."""

    rows: int
    tokens: int
    reach: int
    first: int = 0

    @property
    def repeats(self) -> bool:
        """Whether it will come again often enough to be compiled or recorded."""
        return self.tokens <= SHORT and self.first == 0


@dataclass(frozen=True, slots=True)
class Turn:
    """One session's part: ids that follow `base` positions in its slot."""

    slot: int
    base: int
    ids: Sequence[int]


class StaticPass:
    """One shape's inputs. ids: int64 [rows, tokens]. bases: int64 [rows], the position of each row's first token."""

    def __init__(self, shape: Shape, pool: SlotPool, device: torch.device) -> None:
        self.shape, self.pool = shape, pool
        self.reach: int | None = shape.reach
        self.ids = torch.zeros((shape.rows, shape.tokens), dtype=torch.int64, device=device)
        self.bases = torch.zeros(shape.rows, dtype=torch.int64, device=device)
        self._slots = torch.arange(shape.first, shape.first + shape.rows, device=device)[:, None]
        self._steps = torch.arange(shape.tokens, device=device)
        self._reach = torch.arange(shape.reach, device=device)
        self._masks: dict[int | None, Tensor] = {}
        self.positions = self._steps + self.bases[:, None]

    def fill(self, turns: Sequence[Turn]) -> None:
        """Take in what is to be read; rows of other slots read nothing that counts."""
        ids, bases = torch.zeros(self.ids.shape, dtype=torch.int64), torch.zeros(self.bases.shape, dtype=torch.int64)
        first = self.shape.first
        bases[:] = torch.tensor(self.pool.lengths[first : first + self.shape.rows])
        for turn in turns:
            ids[turn.slot - first, : len(turn.ids)] = torch.tensor(turn.ids)
            bases[turn.slot - first] = turn.base
        self.ids.copy_(ids)
        self.bases.copy_(bases)

    def begin(self) -> None:
        """Work out what all layers share, from the inputs as they are."""
        self.positions = self.bases[:, None] + self._steps
        self._masks.clear()

    def mask(self, window: int | None) -> Tensor:
        """Who sees whom, bool [rows, 1, tokens, reach]. window: positions a query sees, itself included."""
        if window not in self._masks:
            own = self.positions[:, :, None]
            seen = self._reach <= own
            self._masks[window] = (seen if window is None else seen & (self._reach > own - window))[:, None]
        return self._masks[window]

    def file(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Keep what was computed for the tokens, [rows, heads, tokens, width]; views of all that may be looked at."""
        read = []
        for block, states in zip(self.pool.buffers(layer, keys, values), (keys, values), strict=True):
            block[self._slots, :, self.positions] = states.transpose(1, 2)
            read.append(block[self.shape.first : self.shape.first + self.shape.rows, :, : self.shape.reach])
        return read[0], read[1]


Run = Callable[[], Tensor]
Recorder = Callable[[Run], Run]
"""Goes through a computation once; what it returns repeats its kernels on whatever its inputs' memory holds by then."""


class CudaGraphs:
    """A recorder on CUDA. All its graphs work in the same memory: what one returns is valid until the next one runs."""

    def __init__(self) -> None:
        self._memory = torch.cuda.graph_pool_handle()

    def __call__(self, run: Run) -> Run:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._memory):
            result = run()

        def replay() -> Tensor:
            graph.replay()
            return result

        return replay


def by_shape(model: Any) -> Any:
    """The model compiled, once for each shape that comes."""
    torch._dynamo.config.recompile_limit = MOST_SHAPES  # 8 by default; what comes after is not compiled
    torch._dynamo.config.accumulated_recompile_limit = MOST_SHAPES
    return torch.compile(model, dynamic=False)


class StaticBody:
    """A model of transformers as it is, on its device and in its type, over a pool of slots.

    record: of a shape's kernels, at its second pass; None has every pass go through the model's own code. compiled:
    have torch compile that by shape. Raises InvalidRequest for a model that cannot be served, with the reason.
    """

    def __init__(
        self, model: PreTrainedModel, pool: SlotPool, record: Recorder | None = None, compiled: bool = False
    ) -> None:
        check_architecture(model)
        self._model: Any = model.eval()  # type: ignore[no-untyped-call]
        self._model.set_attn_implementation(STATIC_ATTENTION)
        self._short = by_shape(self._model) if compiled else self._model
        self._pool, self._record = pool, record
        self.device, self.layer_count = model.device, model.config.get_text_config(decoder=True).num_hidden_layers
        self.width = model.config.get_text_config(decoder=True).vocab_size
        self._ready: dict[Shape, tuple[StaticPass, Run]] = {}
        with torch.inference_mode():
            self.forward([Turn(0, 0, [0])])  # refuses unknown attention, and makes the pool's memory

    def forward(self, turns: Sequence[Turn], rows: int = 0) -> Tensor:
        """Logits of all tokens of the slots from the shape's first on, [rows, tokens, width]; of the last `rows` tokens
        only for a single turn that is not short. Valid until the next pass.
        """
        shape = shape_of(turns, self._pool)
        if not shape.repeats:
            ready = StaticPass(shape, self._pool, self.device)
            ready.fill(turns)
            return self._run(ready, self._model, rows)
        known = self._ready.get(shape)
        ready = StaticPass(shape, self._pool, self.device) if known is None else known[0]
        ready.fill(turns)
        if known is None:
            self._ready[shape] = ready, self._first(ready)
            return self._run(ready, self._short)
        return known[1]()

    def _first(self, ready: StaticPass) -> Run:
        """What later passes of a shape do: record themselves at the second, or where that fails go on as they are."""

        def plain() -> Tensor:
            return self._run(ready, self._short)

        def second() -> Tensor:
            assert self._record is not None
            repeated: Run = plain
            try:
                repeated = self._record(plain)
            except RuntimeError:
                logger.exception("passes of %s cannot be recorded, they go on one kernel at a time", ready.shape)
            self._ready[ready.shape] = ready, repeated
            return repeated()

        return plain if self._record is None else second

    def _run(self, ready: StaticPass, model: Any, rows: int = 0) -> Tensor:
        ready.begin()
        read = model(
            input_ids=ready.ids,
            position_ids=ready.positions,
            cache=FilingCache(self.layer_count, ready),
            use_cache=True,
            logits_to_keep=rows,
            static=ready,
        )
        logits: Tensor = read.logits
        return logits


def shape_of(turns: Sequence[Turn], pool: SlotPool) -> Shape:
    """The smallest shape these turns fit into: several of SHORT tokens at most, or a single one of any length."""
    tokens = max(len(turn.ids) for turn in turns)
    reach = max(turn.base + len(turn.ids) for turn in turns)
    far = min(max(SHORTEST_REACH, bucket(reach)), pool.positions)
    if tokens > SHORT:
        (turn,) = turns
        return Shape(1, len(turn.ids), far, turn.slot)
    return Shape(min(bucket(max(turn.slot for turn in turns) + 1), pool.slots), bucket(tokens), far)


def static_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    static: StaticPass,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """An attention function of transformers. query: [rows, heads, tokens, width]; [rows, tokens, heads, width].

    key, value: [rows, key heads, reach, width], neither copied nor repeated.
    """
    if s_aux is not None:
        raise InvalidRequest("attention with sinks cannot be served", "model")
    mask, scale = static.mask(sliding_window), query.shape[-1] ** -0.5 if scaling is None else scaling
    if softcap is None:
        read = scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scale, enable_gqa=True)
    else:
        read = _capped(query, key, value, mask, scale, softcap)
    return read.transpose(1, 2), None


def _capped(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float, cap: float) -> Tensor:
    rows, heads, tokens, width = query.shape
    grouped = query.reshape(rows, key.shape[1], -1, width)  # the heads that share a key head are rows of one product
    scores = ((grouped * scale) @ key.transpose(2, 3) / cap).tanh() * cap
    hidden = ~mask.repeat(1, 1, heads // key.shape[1], 1)
    weights = torch.softmax(scores.masked_fill(hidden, -torch.inf), dim=-1, dtype=torch.float32).to(value.dtype)
    return (weights @ value).view(rows, heads, tokens, width)


AttentionInterface.register(STATIC_ATTENTION, static_attention)
AttentionMaskInterface.register(STATIC_ATTENTION, no_mask)
