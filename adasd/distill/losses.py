"""What the student is asked to make small, at every position: how far its distribution is from the target's."""

from __future__ import annotations

from typing import Protocol

import torch


class Loss(Protocol):
    """log_target, log_student: natural logarithms over the ids the student knows, [positions, head].

    The target's probabilities there sum to less than 1: the rest of its vocabulary is out of the student's reach.
    """

    def __call__(self, log_target: torch.Tensor, log_student: torch.Tensor) -> torch.Tensor:
        """Mean over positions, a scalar."""
        ...


class KullbackLeibler:
    """KL(target || student) but for the ids out of reach: the mean-seeking loss to begin with."""

    def __call__(self, log_target: torch.Tensor, log_student: torch.Tensor) -> torch.Tensor:
        return (log_target.exp() * (log_target - log_student)).sum(-1).mean()


class TotalVariation:
    """1 - sum min(p, q), the probability of a rejection itself; its gradient says nothing where both hardly overlap."""

    def __call__(self, log_target: torch.Tensor, log_student: torch.Tensor) -> torch.Tensor:
        return 1 - torch.minimum(log_target, log_student).exp().sum(-1).mean()


LOSSES: dict[str, type[Loss]] = {"kl": KullbackLeibler, "tv": TotalVariation}
