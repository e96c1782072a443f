"""One name for a biLM's numbers: two biLMs with the same name give the same vectors."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import torch
from torch import Tensor

from ..lm.bilm import BiLM
from ..lm.config import BiLMConfig


def fingerprint(bilm: BiLM) -> str:
    """Name a biLM by what fixes its vectors: settings, weights and vocabularies. In which precision the weights were
    stored, on which device they are and whether they are frozen changes nothing, as long as the values are the same.

    bilm (BiLM): The model. One of full size takes a fifth of a second.
    RETURNS (str): SHA-256, 64 hexadecimal digits.
    """
    hasher = hashlib.sha256(_line(_settings(bilm.config)))
    for name, tensor in sorted(bilm.state_dict().items()):
        values = _plain(tensor)
        hasher.update(_line([name, str(values.dtype), list(values.shape)]))
        hasher.update(values.reshape(-1).view(torch.uint8).numpy().data)
    for name, entries in sorted(bilm.encoder.vocabularies.items()):
        hasher.update(_line([name, list(entries)]))
    return hasher.hexdigest()


def _settings(config: BiLMConfig) -> dict[str, Any]:
    """What differs from the defaults, so that a setting that comes with a later version leaves older names alone."""
    defaults = BiLMConfig().to_dict()
    settings = config.to_dict().items()
    changed = {name: value for name, value in settings if name not in defaults or value != defaults[name]}
    # A clip of 5 is a clip of 5.0.
    return {name: float(value) if type(value) is int else value for name, value in changed.items()}


def _plain(tensor: Tensor) -> Tensor:
    dtype = torch.float32 if tensor.is_floating_point() else tensor.dtype
    return tensor.detach().to("cpu", dtype).contiguous()


def _line(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True).encode() + b"\n"
