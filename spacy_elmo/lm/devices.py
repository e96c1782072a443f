"""From the CPU to a device."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """RETURNS (Tensor): The tensor on a device. A copy from the CPU to a GPU does not wait for what the GPU is still doing."""
    if device.type != "cuda" or tensor.device.type != "cpu":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


def indices(numbers: Sequence[int], device: torch.device) -> Tensor:
    """RETURNS (Tensor): int64, (numbers,), on a device, as by `to_device`."""
    return to_device(torch.tensor(numbers, dtype=torch.long), device)
