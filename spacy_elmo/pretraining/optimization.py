"""Optimizer and learning rate of a training run."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from ..lm.bilm import BiLM
from ..lm.softmax import OutputHead
from .settings import TrainingSettings

_FLOORS = {"cosine": 0.02, "constant": 1.0, "slanted-triangular": 1 / 32}
"""Share of the peak rate at the end of a run."""

_RISE = 0.1
"""Share of a run in which a slanted triangle rises."""


def build_optimizer(bilm: BiLM, head: OutputHead, settings: TrainingSettings) -> torch.optim.Optimizer:
    """The optimizer, with a group of parameters for each depth: token encoder, each LSTM layer, output head.

    RETURNS (Optimizer): Its rates are set at each step by `set_rate`.
    """
    layers = zip(bilm.forward_lm, bilm.backward_lm)
    by_depth: list[list[nn.Module]] = [[bilm.encoder], *(list(both) for both in layers), [head]]
    groups = [
        {
            "params": [parameter for module in modules for parameter in module.parameters()],
            "share": settings.layer_rate_decay ** (len(by_depth) - depth),
        }
        for depth, modules in enumerate(by_depth, start=1)
    ]
    if settings.optimizer == "adagrad":
        # As in TensorFlow, whose sums begin at a number of their own instead of an epsilon. On a GPU, torch's is fused from
        # 2.13 on only: there it is left to torch, which takes many weights at a time.
        fused = True if all(parameter.device.type == "cpu" for parameter in bilm.parameters()) else None
        return torch.optim.Adagrad(groups, lr=0.0, initial_accumulator_value=1.0, eps=0.0, fused=fused)
    return torch.optim.AdamW(groups, lr=0.0, betas=(0.9, 0.98), weight_decay=settings.weight_decay, fused=True)


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Set the rate of the uppermost group; that of each other one follows from its share."""
    for group in optimizer.param_groups:
        group["lr"] = rate * group["share"]


def take_step(optimizer: torch.optim.Optimizer, gradients: Tensor, divisor: Tensor, finite: Tensor) -> None:
    """Change the weights by their gradients divided by a number; neither they nor what is remembered of gradients change if
    these are not finite. Nothing waits for the device.

    optimizer (Optimizer): From `build_optimizer`.
    gradients (Tensor): All of them, (parameters,), of which those of the weights are views; changed by what is not fused.
    divisor (Tensor): A scalar. finite (Tensor): A scalar, bool.
    """
    if optimizer.defaults["fused"]:
        optimizer.grad_scale = divisor  # type: ignore[attr-defined]
        optimizer.found_inf = (~finite).float()  # type: ignore[attr-defined]
    else:
        # Gradients of 0 leave the weights and the sums of Adagrad as they are.
        gradients.div_(divisor).masked_fill_(~finite, 0.0)
    optimizer.step()


def learning_rate(progress: float, step: int, settings: TrainingSettings) -> float:
    """Linear warm-up, then, by the share of the run that is done, down along a cosine, or not at all. A slanted triangle
    (Howard and Ruder 2018) has its own way up, from a 32nd of the peak.

    progress (float): Share of the run that is done, 0 to 1.
    step (int): Steps done.
    settings (TrainingSettings): Schedule, peak and warm-up.
    RETURNS (float): The rate of the next step.
    """
    warm = min(1.0, (step + 1) / max(1, settings.warmup_steps))
    done = min(1.0, max(0.0, progress))
    floor = _FLOORS[settings.schedule]
    if settings.schedule == "slanted-triangular":
        height = done / _RISE if done < _RISE else (1 - done) / (1 - _RISE)
        return settings.peak_rate * (floor + (1 - floor) * height)
    left = (1 + math.cos(math.pi * done)) / 2 if settings.schedule == "cosine" else 1 - done
    return settings.peak_rate * warm * (floor + (1 - floor) * left)


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
