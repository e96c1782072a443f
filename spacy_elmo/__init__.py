"""ELMo for spaCy: deep contextualized word representations as a pipeline component.

`import spacy_elmo` makes the factory "elmo" known to spaCy, also where entry points are not installed, and the
attributes `doc._.elmo`, `token._.elmo` and `span._.elmo`. It imports no torch of its own, and works without spaCy: the
language model (`spacy_elmo.lm`) and its training (`spacy_elmo.pretraining`) need torch only.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .errors import ElmoError, ElmoWarning
    from .lm.bilm import BiLM, BiLMOutput, BiLMState
    from .lm.config import BiLMConfig
    from .pipeline.component import Elmo
    from .pipeline.mixes import LayerMix, layer_mixes
    from .weights.bilm_hdf5 import load_bilm_hdf5
    from .weights.formats import LoadedModel, load_model, save_model
    from .weights.native import load_bilm, save_bilm

__version__ = "0.1.0"

_PUBLIC = {
    "BiLM": "lm.bilm",
    "BiLMConfig": "lm.config",
    "BiLMOutput": "lm.bilm",
    "BiLMState": "lm.bilm",
    "Elmo": "pipeline.component",
    "ElmoError": "errors",
    "ElmoWarning": "errors",
    "LayerMix": "pipeline.mixes",
    "LoadedModel": "weights.formats",
    "layer_mixes": "pipeline.mixes",
    "load_bilm": "weights.native",
    "load_bilm_hdf5": "weights.bilm_hdf5",
    "load_model": "weights.formats",
    "save_bilm": "weights.native",
    "save_model": "weights.formats",
}

__all__ = [
    "BiLM",
    "BiLMConfig",
    "BiLMOutput",
    "BiLMState",
    "Elmo",
    "ElmoError",
    "ElmoWarning",
    "LayerMix",
    "LoadedModel",
    "__version__",
    "layer_mixes",
    "load_bilm",
    "load_bilm_hdf5",
    "load_model",
    "save_bilm",
    "save_model",
]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{_PUBLIC[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC} - {"TYPE_CHECKING", "Any", "import_module"})


try:
    from .pipeline import attributes, factory  # noqa: F401
except ModuleNotFoundError as error:
    if error.name not in ("spacy", "thinc"):
        raise
else:
    attributes.register_where_free()
