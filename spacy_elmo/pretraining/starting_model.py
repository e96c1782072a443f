"""The model that a run goes on with, and what becomes of its output head."""

from __future__ import annotations

import warnings
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..errors import ConfigError, ElmoWarning, Errors, Warnings, one_line
from ..lm.softmax import FullSoftmax, OutputHead, SampledSoftmax, build_head
from ..weights.formats import LoadedModel
from ..weights.modules import give_memory, shapes_only
from .head_settings import head_settings
from .settings import TrainingSettings
from .vocabulary import Vocabulary

_SIZES = {"projection", "n_words"}
_OF_THE_VOCABULARY = {"vocabulary_size", "min_count"}


def adopt_head(
    initial: LoadedModel, settings: TrainingSettings, named: Collection[str], vocabulary: Vocabulary | None
) -> tuple[LoadedModel, TrainingSettings]:
    """Keep the output head of a model, if it has one for the words that are to be predicted; or else it gets a new one.

    A head that is kept stays as it is, but that one of full size can be trained on samples, and back.

    initial (LoadedModel): The model.
    settings (TrainingSettings): How to train.
    named (Collection[str]): The settings that somebody asked for; others, such as those of a preset, give way.
    vocabulary (Vocabulary | None): The words to predict, if they are given.
    RETURNS (tuple[LoadedModel, TrainingSettings]): The model, its head as it will be trained, None for a new one; and the
        settings, with those of this head.
    RAISES (ConfigError): E286 if settings are asked for that a head that is kept cannot have.
    """
    source = initial.facts.get("source")
    if initial.head is not None and initial.vocabulary is None:
        warnings.warn(Warnings.W227.format(source=source), ElmoWarning, stacklevel=2)
    is_kept = initial.head is not None and initial.vocabulary is not None
    if is_kept and vocabulary is not None:
        is_kept = initial.vocabulary == vocabulary.words
    if initial.head is None or not is_kept:
        return replace(initial, head=None, vocabulary=None), settings
    head, wanted = initial.head, _shapes_of_head(initial.head, settings.softmax)
    refused = sorted(_OF_THE_VOCABULARY.intersection(named))
    own = {name: value for name, value in head.settings.items() if name not in _SIZES}
    if isinstance(head, FullSoftmax) and isinstance(wanted, FullSoftmax):
        wanted.output = head.output
        head, own = wanted, settings.softmax
    elif "softmax" in named and wanted.settings != head.settings:
        refused.append("softmax")
    if refused:
        raise ConfigError(Errors.E286.format(names=refused, source=source, head=own))
    return replace(initial, head=head), replace(settings, softmax=own)


def origin_of(initial: LoadedModel | None) -> dict[str, str] | None:
    """RETURNS (dict | None): What is to be said of weights that come from this model: "name" and, where known, "licence"."""
    if initial is None:
        return None
    facts = initial.facts
    name = facts.get("name") or one_line(Path(str(facts.get("source", "a biLM")).split("::")[-1]).name)
    licence = {"licence": one_line(facts["licence"])} if facts.get("licence") else {}
    return {"name": name, **licence}


def _shapes_of_head(head: OutputHead, softmax: dict[str, Any]) -> OutputHead:
    """A head of other settings for the same words; its parameters have no memory, but the counts that it may sample by do."""
    projection, n_words = (head.settings[name] for name in ("projection", "n_words"))
    with shapes_only():
        other = build_head(head_settings(softmax, projection, n_words))
    if isinstance(other, SampledSoftmax):
        give_memory(other.sampling)
    return other
