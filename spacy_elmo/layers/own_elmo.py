"""ELMo within one component, with a biLM of its own: what `nlp.replace_listeners` puts in the place of a listener."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from spacy.tokens import Doc
from spacy.util import registry
from thinc.api import Model
from thinc.types import Floats2d, Floats3d

from ..errors import Errors, PipelineError
from .bilm_model import bilm_shim
from .listener import LISTENER, mixed_and_projected
from .scalar_mix import build_scalar_mix
from .shim import FineTuning

OWN_ELMO = "spacy_elmo.Elmo.v1"

_TOK2VEC = "model.tok2vec"


@registry.architectures("spacy_elmo.Elmo.v1")  # type: ignore[untyped-decorator]
def build_own_elmo(
    bilm: Model[list[Doc], list[Floats3d]],
    frozen: bool = True,
    lr_scale: float | list[float] = 1.0,
    max_grad_norm: float | None = 1.0,
    bfloat16: bool = False,
    width: int | None = None,
    layer: int | None = None,
    layer_norm: str = "none",
    layer_dropout: float = 0.0,
    dropout: float = 0.5,
    l2: float = 0.001,
    gamma: float = 1.0,
) -> Model[list[Doc], list[Floats2d]]:
    """A biLM that belongs to one component, with a mix of its layers. For the `tok2vec` of spaCy's own architectures.

    bilm (Model[list[Doc], list[Floats3d]]): The biLM, `spacy_elmo.BiLM.v1`.
    frozen, lr_scale, max_grad_norm, bfloat16: See `make_elmo`.
    width, layer, layer_norm, layer_dropout, dropout, l2, gamma: See `build_elmo_listener`.
    RETURNS (Model[list[Doc], list[Floats2d]]): The layer.
    RAISES (ConfigError): E300 if a setting cannot be.
    """
    bilm_shim(bilm).fine_tuning = None if frozen else FineTuning(lr_scale, max_grad_norm, bfloat16)
    mix = build_scalar_mix(gamma=gamma, layer=layer, layer_norm=layer_norm, layer_dropout=layer_dropout, l2=l2)
    return mixed_and_projected(bilm, mix, dropout, width)


def replace_listener(
    bilm: Model[list[Doc], list[Floats3d]], listener: Model[Any, Any], pipe: object
) -> Model[list[Doc], list[Floats3d]]:
    """What spaCy calls to put a copy of the biLM in the place of a listener. The mix that follows it stays.

    bilm (Model): A copy of the model of the elmo pipe.
    listener (Model): The listener.
    pipe (Elmo): The elmo pipe.
    RETURNS (Model): The copy.
    """
    return bilm


@dataclass(frozen=True)
class ReplaceListenerConfig:
    """What spaCy calls to make the config of what stands in the place of a listener.

    fine_tuning (FineTuning | None): How the biLM of the elmo pipe is trained; None if it is frozen.
    """

    fine_tuning: FineTuning | None

    def __call__(self, bilm: dict[str, Any], tok2vec: dict[str, Any]) -> dict[str, Any]:
        """Make the config.

        bilm (dict): Config of the model of the elmo pipe.
        tok2vec (dict): Config of the `tok2vec` of the component; the listener is this or within.
        RETURNS (dict): The config of a spacy_elmo.Elmo.v1.
        RAISES (PipelineError): E314 if there are listeners with different settings: spaCy does not say which is meant. E318
            if something else is to be replaced, such as all of the `tok2vec`.
        """
        listeners = dict(_listeners(tok2vec, _TOK2VEC))
        # spaCy does not hand over which path it was given, though it has it.
        path = sys._getframe(1).f_locals.get("listener_path")
        if listeners and path not in listeners and _is_shown(path):
            raise PipelineError(Errors.E318.format(path=path, right=list(listeners)))
        found = [{**block} for block in listeners.values()]
        for block in found:
            del block["@architectures"]
            block.pop("upstream", None)
        if not found or any(block != found[0] for block in found):
            raise PipelineError(Errors.E314.format(found=found))
        training = {"frozen": True} if self.fine_tuning is None else {"frozen": False, **asdict(self.fine_tuning)}
        return {"@architectures": OWN_ELMO, **training, **found[0], "bilm": bilm}


def _is_shown(path: Any) -> bool:
    """Whether what stands at a path can be told: spaCy hands over the config of the `tok2vec` only."""
    return path == "model" or f"{path}.".startswith(f"{_TOK2VEC}.")


def _listeners(config: Any, path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The blocks of listeners in a config, by their paths."""
    if isinstance(config, dict):
        if config.get("@architectures") == LISTENER:
            yield path, config
        for name, block in config.items():
            yield from _listeners(block, f"{path}.{name}")
