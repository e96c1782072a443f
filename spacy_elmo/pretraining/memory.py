"""Whether a biLM can be trained here at all, found out before hours of counting words."""

from __future__ import annotations

import os

import torch

from ..errors import Errors, TrainingError
from ..lm.bilm import BiLM
from ..lm.config import BiLMConfig
from ..weights.modules import shapes_only

_BYTES_OF_A_PARAMETER = 4 * 4
_GIB = 2**30


def require_memory(config: BiLMConfig, device: torch.device) -> None:
    """Refuse a biLM that is larger than all the memory there is. One that passes may still not fit: what batches, the
    output head and other programs take is not counted.

    config (BiLMConfig): The biLM.
    device (torch.device): Where to train.
    RAISES (TrainingError): E220 if weights, gradients and optimizer, in float32, take more than the device has.
    """
    with shapes_only():
        parameters = sum(parameter.numel() for parameter in BiLM(config).parameters())
    needed, there = parameters * _BYTES_OF_A_PARAMETER, _memory_of(device)
    if there is not None and needed > there:
        sizes = {"needed": needed / _GIB, "there": there / _GIB}
        raise TrainingError(Errors.E220.format(parameters=parameters, device=device, **sizes))


def _memory_of(device: torch.device) -> int | None:
    """Bytes of the device, None where the system does not say."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None
