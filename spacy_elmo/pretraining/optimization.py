"""Optimizer, learning rate and dropout of a training run."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn


def build_optimizer(parameters: Iterable[nn.Parameter], weight_decay: float) -> torch.optim.Optimizer:
    """RETURNS (Optimizer): AdamW; its rate is set at each step by `learning_rate`."""
    return torch.optim.AdamW(parameters, lr=0.0, betas=(0.9, 0.98), weight_decay=weight_decay, fused=True)


def learning_rate(progress: float, step: int, peak: float, warmup_steps: int, floor: float = 0.02) -> float:
    """Linear warm-up, then a cosine down to a share of the peak.

    progress (float): Share of the run that is done, 0 to 1.
    step (int): Steps done.
    peak (float): The highest rate.
    warmup_steps (int): Steps until the peak.
    floor (float): Share of the peak at the end.
    RETURNS (float): The rate of the next step.
    """
    warm = min(1.0, (step + 1) / max(1, warmup_steps))
    cosine = (1 + math.cos(math.pi * min(1.0, max(0.0, progress)))) / 2
    return peak * warm * (floor + (1 - floor) * cosine)


class SeededDropout:
    """Dropout from a generator of its own, so that a run can go on exactly where it was.

    rate (float): Share of values set to zero.
    generator (torch.Generator): Decides which.
    """

    def __init__(self, rate: float, generator: torch.Generator) -> None:
        self.rate = rate
        self.generator = generator

    def __call__(self, values: Tensor) -> Tensor:
        kept = torch.rand(values.shape, generator=self.generator, device=values.device) >= self.rate
        return values * kept.to(values.dtype).div_(1 - self.rate)


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """RETURNS (dict[str, Tensor]): The optimizer's memory under flat names."""
    state: dict[int, dict[str, Any]] = optimizer.state_dict()["state"]
    return {f"{index}.{name}": value for index, slots in state.items() for name, value in slots.items()}


def restore_optimizer(optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    """The inverse of `optimizer_tensors`, for an optimizer over the same parameters."""
    state: dict[int, dict[str, Tensor]] = {}
    for flat, value in tensors.items():
        index, name = flat.split(".", 1)
        state.setdefault(int(index), {})[name] = value
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
