"""Where work is done: the device that is asked for, and what a run records of its surroundings."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from .. import __version__
from ..errors import Errors, TrainingError


def device_of(gpu_id: int) -> torch.device:
    """The device that is asked for.

    gpu_id (int): A GPU, or -1 for the CPU.
    RETURNS (torch.device): It.
    RAISES (TrainingError): E412 if there is no such GPU.
    """
    if gpu_id < 0:
        return torch.device("cpu")
    there = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if gpu_id >= there:
        raise TrainingError(Errors.E412.format(gpu_id=gpu_id, there=f"{there} GPUs" if there else "no GPU"))
    return torch.device("cuda", gpu_id)


def environment(device: torch.device, processes: int) -> dict[str, Any]:
    """RETURNS (dict): Versions, device, threads and processes, in JSON's types."""
    gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else None
    return {
        "spacy_elmo": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numba": _version_if_installed("numba"),
        "system": platform.platform(),
        "device": gpu or str(device),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "processes": processes,
    }


def _version_if_installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
