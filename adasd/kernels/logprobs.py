"""`adasd.core.logprobs` on the device: the host sees the listed ids only."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from adasd.core.logprobs import ranked
from adasd.core.verdicts import TokenLogprobs
from adasd.kernels.loops import NEGLIGIBLE
from adasd.kernels.selection import likeliest
from adasd.kernels.warping import forced, log_weights, total


def token_logprobs(logits: Tensor, tokens: Sequence[int], top: int) -> list[TokenLogprobs]:
    """Of one token a row, and of each row's `top` likeliest ids. logits: [n, vocabulary], n at least len(tokens)."""
    logits = forced(logits[: len(tokens)])
    peak = logits.amax(-1, keepdim=True).to(torch.float64)
    log_mass = total(log_weights(logits, peak, 1.0).clamp_(min=NEGLIGIBLE).exp_()).log_()
    chosen = torch.tensor(tokens, device=logits.device)[:, None]
    own = (log_weights(logits.gather(-1, chosen), peak, 1.0) - log_mass)[:, 0].tolist()
    row, ids = _listed(logits, top)
    logs = log_weights(logits[row, ids][:, None], peak[row], 1.0) - log_mass[row]
    rows, places, values = torch.stack([row.to(torch.float64), ids.to(torch.float64), logs[:, 0]]).cpu().numpy()
    ends = np.searchsorted(rows, np.arange(len(tokens) + 1))
    return [
        ranked(logprob, places[start:end].astype(np.int64), values[start:end], top)
        for logprob, (start, end) in zip(own, pairwise(ends), strict=True)
    ]


def _listed(logits: Tensor, top: int) -> tuple[Tensor, Tensor]:
    """Rows, ascending, and ids of the `top` likeliest and of all that tie with the last, int64 [m] each."""
    count = min(top, logits.shape[-1])
    least = likeliest(logits, count)[0][:, -1:] if count else torch.full_like(logits[:, :1], math.inf)
    row, ids = (logits >= least).nonzero().unbind(-1)
    return row, ids
