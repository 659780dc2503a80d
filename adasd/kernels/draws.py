"""`adasd.core.draws` on the device: the same bits, hence the same decisions wherever they are taken."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from adasd.core.draws import GOLDEN_GAMMA, MIX_1, MIX_2


def inverse_cdf(weights: Tensor, uniform: float) -> Tensor:
    """The first id whose cumulative weight exceeds uniform * sum, int64 scalar; never an id of weight 0.

    weights: float64 [vocabulary], >= 0, not all 0.
    """
    cumulative = weights.cumsum(-1)
    if cumulative.device.type != "cpu":
        return first_above(cumulative.masked_fill_(weights == 0, 0.0), uniform)
    return torch.searchsorted(cumulative, _mark(cumulative[-1], uniform), right=True)


def first_above(cumulative: Tensor, uniform: float) -> Tensor:
    """`inverse_cdf` of sums that were taken in parallel: they need not ascend to the last bit.

    So those of ids of weight 0 are 0 here. cumulative: float64 [vocabulary].
    """
    return (cumulative > _mark(cumulative.amax(), uniform)).to(torch.uint8).argmax()


def _mark(total: Tensor, uniform: float) -> Tensor:
    """uniform * total, which may be rounded up to the total itself."""
    return torch.minimum(uniform * total, total.nextafter(torch.zeros_like(total)))


def gumbel(keys: Sequence[int], ids: Tensor) -> Tensor:
    """Gumbel noise of token `ids`, one row a key (`CounterDraws.gumbel_key`), float64 [keys, k]. ids: int64 [k]."""
    bits = _shifted(splitmix64(keys, ids), 11)
    uniform = bits.to(torch.float64).add_(0.5).div_(2.0**53).clamp_(max=1.0 - 2.0**-53)
    return uniform.log_().neg_().log_().neg_()


def splitmix64(keys: Sequence[int], ids: Tensor) -> Tensor:
    """`adasd.core.draws.splitmix64` of every key, its 64 bits as int64 [keys, k]. ids: int64 [k].

    int64 arithmetic wraps, so sums and products have the bits of the unsigned ones.
    """
    rows = torch.tensor([[_signed(key)] for key in keys], dtype=torch.int64, device=ids.device)
    state = rows + (ids + 1) * _signed(GOLDEN_GAMMA)
    state.bitwise_xor_(_shifted(state, 30)).mul_(_signed(MIX_1))
    state.bitwise_xor_(_shifted(state, 27)).mul_(_signed(MIX_2))
    return state.bitwise_xor_(_shifted(state, 31))


def _shifted(bits: Tensor, by: int) -> Tensor:
    """Logical right shift: int64's own would drag the sign along."""
    return (bits >> by).bitwise_and_((1 << (64 - by)) - 1)


def _signed(bits: int) -> int:
    """The int64 with these 64 bits."""
    return bits - 2**64 if bits >= 2**63 else bits
