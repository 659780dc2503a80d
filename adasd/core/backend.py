"""The seam between the rules and the arrays: what a rule needs of logits, wherever those live.

`adasd.core.host` implements it in numpy, `adasd.kernels` in torch; one contract suite compares both.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol, TypeVar

from adasd.core.draws import DrawKey, Draws
from adasd.core.errors import NumericalFault
from adasd.core.processing import Edits
from adasd.core.types import Draft, Evidence, Row, SamplingParams
from adasd.core.verdicts import TokenLogprobs

T = TypeVar("T")
D = TypeVar("D", bound=Draws, contravariant=True)
Logits = TypeVar("Logits", contravariant=True)


class Proposal(NamedTuple):
    """One draft position. entropy: bits, of the untruncated softmax at the request's temperature (at 0: of 1).

    row: what the candidate is sampled from; None where masks leave the draft nothing, which ends the block.
    """

    entropy: float
    row: Row | None


class TargetRows(Protocol[D]):
    """The warped target distributions behind one block of n candidates: n + 1 rows."""

    def evidence(self, draft: Draft) -> Iterable[Evidence]:
        """One entry per candidate, in their order; perhaps worked out as it is asked for, since nobody asks behind the
        first that is rejected. draft: sound, as `core.rows.check_block` has it."""
        ...

    def emit(self, offset: int, minus: Row | None, key: DrawKey, draws: D) -> int:
        """Sample row `offset`; with `minus` = q the residual norm([p - q]+), or p where that is empty.

        Inverse CDF in ascending id order; never an id of probability 0.
        """
        ...

    def coupled(self, position: int, draws: D) -> Sequence[int]:
        """argmax(log p + g) of every row; row i takes the Gumbel noise of absolute position `position + i`.

        Lowest id on a tie. At temperature 0 the row's only token, without noise.
        """
        ...

    def logprobs(self, tokens: Sequence[int], top: int) -> Sequence[TokenLogprobs]:
        """Of tokens[i] in row i before any processing or warping, with the `top` likeliest ids of that row."""
        ...


class Kernels(Protocol[Logits, D]):
    """Logits in, distributions out; before anything else logits become what `edits` make of them.

    The batch forms give every entry bit for bit what the single forms do, whatever else is in the batch; where those
    would raise, the entry is the fault itself.
    """

    def propose(self, logits: Logits, sampling: SamplingParams, edits: Edits | None = None) -> Proposal:
        """The draft's row at one position. logits: [width]. Raises NumericalFault (side `draft`) on NaN."""
        ...

    def propose_batch(
        self, rows: Sequence[Logits], samplings: Sequence[SamplingParams], edits: Sequence[Edits | None] = ()
    ) -> Sequence[Proposal | NumericalFault]:
        """`propose` for positions of different requests. rows: logits of each, [width]. edits: of each, or none."""
        ...

    def target(self, logits: Logits, sampling: SamplingParams, edits: Edits | None = None) -> TargetRows[D]:
        """The target's rows of one block. logits: [n + 1, vocabulary]. Raises NumericalFault (side `target`)."""
        ...

    def target_batch(
        self, logits: Sequence[Logits], samplings: Sequence[SamplingParams], edits: Sequence[Edits | None] = ()
    ) -> Sequence[TargetRows[D] | NumericalFault]:
        """`target` for the blocks of several requests, which may differ in length. edits: of each, or none."""
        ...


def sound(outcome: T | NumericalFault) -> T:
    """One entry of a batch, unless it is a fault: that is raised."""
    if isinstance(outcome, NumericalFault):
        raise outcome
    return outcome


def each(edits: Sequence[Edits | None], count: int) -> Sequence[Edits | None]:
    """The edits of every entry of a batch of `count`."""
    return edits or (None,) * count
