"""Gradual unfreezing: the layers of a biLM begin to learn one after another, from the top (Howard and Ruder 2018, section 3.3)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from spacy.language import Language
from spacy.util import registry

from ..errors import Errors, PipelineError
from ..layers.bilm_model import bilm_shim, sync_dims
from ..layers.checks import require

_require = partial(require, "the callback spacy_elmo.unfreeze_at.v1")

UNITS = ("step", "epoch")


@registry.callbacks("spacy_elmo.unfreeze_at.v1")  # type: ignore[untyped-decorator]
def unfreeze_at(
    when: list[int], component: str = "elmo", unit: str = "step"
) -> Callable[[Language, dict[str, Any]], None]:
    """Let the layers of a biLM begin to learn at given times. For `training.before_update`.

    when (list[int]): The step at which each layer begins, the top layer first; with as many as the biLM has LSTM layers and one
        more, the last is for the word encoder. A layer that is left out stays frozen.
    component (str): Name of the elmo pipe, which is not frozen.
    unit (str): "step", or "epoch" if `when` counts passes over the training data, from 0.
    RETURNS (Callable): What spaCy calls before each update.
    RAISES (ConfigError): E300 if a setting cannot be. (PipelineError): E315, in training, if there is no such pipe to unfreeze.
    """
    _require("unit", unit, unit in UNITS, f"one of {UNITS}")
    _require("when", when, when == sorted(when), "numbers that do not fall: the top layer is the first to learn")
    return UnfreezeAt(tuple(when), component, unit)


@dataclass(frozen=True)
class UnfreezeAt:
    """See `unfreeze_at`."""

    when: tuple[int, ...]
    component: str
    unit: str

    def __call__(self, nlp: Language, now: dict[str, Any]) -> None:
        """Unfreeze what is due.

        nlp (Language): The pipeline.
        now (dict): "step" and "epoch".
        RAISES (ConfigError): E300 if there are more times than layers. (PipelineError): E315 if there is nothing to unfreeze.
        """
        from .component import Elmo

        pipe = nlp.get_pipe(self.component) if self.component in nlp.component_names else None
        problem = f"the pipeline has only {nlp.component_names}" if pipe is None else "it is no elmo pipe that trains"
        if not isinstance(pipe, Elmo) or pipe.is_frozen:
            raise PipelineError(Errors.E315.format(component=self.component, problem=problem))
        shim = bilm_shim(pipe.model)
        if not pipe.model.has_dim("nL"):
            shim.bilm
            sync_dims(pipe.model)
        n_layers = pipe.model.get_dim("nL")
        expected = f"at most {n_layers} numbers, one for each layer of the biLM"
        _require("when", list(self.when), len(self.when) <= n_layers, expected)
        shim.lowest_trained = n_layers - sum(time <= now[self.unit] for time in self.when)
