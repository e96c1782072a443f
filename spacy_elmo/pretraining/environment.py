"""Where a run is at work, for its records."""

from __future__ import annotations

import os
import platform
from typing import Any

import torch

from .. import __version__


def environment(device: torch.device, processes: int) -> dict[str, Any]:
    """RETURNS (dict): Versions, device, threads and processes, in JSON's types."""
    gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else None
    return {
        "spacy_elmo": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "system": platform.platform(),
        "device": gpu or str(device),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "processes": processes,
    }
