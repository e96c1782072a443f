"""The output heads, by their settings."""

from __future__ import annotations

import inspect
from typing import Any

from ..errors import ConfigError, Errors
from .adaptive_softmax import AdaptiveSoftmax
from .full_softmax import FullSoftmax
from .output_head import OutputHead
from .sampled_softmax import SampledSoftmax
from .tied_softmax import TiedSoftmax, VocabularyEncoder

__all__ = [
    "AdaptiveSoftmax",
    "FullSoftmax",
    "OutputHead",
    "SampledSoftmax",
    "TiedSoftmax",
    "VocabularyEncoder",
    "build_head",
]

_HEADS: dict[str, type[OutputHead]] = {
    head.kind: head for head in (FullSoftmax, AdaptiveSoftmax, SampledSoftmax, TiedSoftmax)
}


def build_head(settings: dict[str, Any]) -> OutputHead:
    """An output head with new weights from what `head.settings` holds.

    RAISES (ConfigError): E001 for an unknown kind, a setting that the kind does not have or needs, or a value that
        cannot be.
    """
    settings = dict(settings)
    kind = settings.pop("kind", None)
    if not isinstance(kind, str) or kind not in _HEADS:
        raise ConfigError(Errors.E001.format(name="softmax.kind", value=kind, expected=f"one of {sorted(_HEADS)}"))
    signature = inspect.signature(_HEADS[kind])
    try:
        signature.bind(**settings)
    except TypeError as error:
        expected = f"the settings {list(signature.parameters)} of a head of kind {kind!r}"
        raise ConfigError(Errors.E001.format(name="softmax", value=sorted(settings), expected=expected)) from error
    return _HEADS[kind](**settings)
