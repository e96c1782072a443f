"""Pipelines as the commands build and load them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ..errors import ElmoError, Errors, PipelineError, WeightsError, detail_of

if TYPE_CHECKING:
    from spacy.language import Language

    from ..lm.bilm import BiLM
    from ..pipeline.component import Elmo

_MOST_SHOWN = 5


def blank_pipeline(lang: str) -> Language:
    """RETURNS (Language): A pipeline with nothing but the tokenizer of a language.

    RAISES (PipelineError): E415 if there is no such language.
    """
    import spacy

    try:
        return spacy.blank(lang)
    except Exception as error:  # each language has its own ways to fail
        raise PipelineError(Errors.E415.format(lang=lang, detail=detail_of(error))) from error


def saved_pipeline(model: str, weights_option: str | None = None) -> Language:
    """Load a pipeline.

    model (str): Path or name of a pipeline that was saved or installed.
    weights_option (str | None): The option of the command that takes weights in place of a pipeline, if it has one.
    RETURNS (Language): The pipeline.
    RAISES (PipelineError): E408 if there is none, E413 if it cannot be loaded, E483 if it is weights of ELMo, E484 if it is a
        directory of pipelines.
    """
    import spacy

    try:
        return spacy.load(model)
    except ElmoError:
        raise
    except Exception as error:  # spaCy and the components of others raise what they like
        message = _other_than_pipeline(model, weights_option)
        if message is None and isinstance(error, OSError):
            message = Errors.E408.format(model=model, detail=detail_of(error))
        elif message is None:
            detail = _broken_file(Path(model)) or detail_of(error)
            message = Errors.E413.format(model=model, detail=detail)
        raise PipelineError(message) from error


def add_elmo(nlp: Language, bilm: BiLM | None = None, **config: Any) -> Elmo:
    """Add an elmo pipe.

    nlp (Language): The pipeline.
    bilm (BiLM | None): Its biLM. Default: the model that comes with spacy-elmo.
    **config: Settings of the pipe.
    RETURNS (Elmo): The pipe.
    """
    elmo = cast("Elmo", nlp.add_pipe("elmo", config=config))
    if bilm is not None:
        elmo.bilm = bilm
    return elmo


def elmo_pipe(nlp: Language) -> Elmo:
    """RETURNS (Elmo): The last elmo pipe of a pipeline.

    RAISES (PipelineError): E407 if it has none.
    """
    names = [name for name in nlp.pipe_names if nlp.get_pipe_meta(name).factory == "elmo"]
    if not names:
        raise PipelineError(Errors.E407.format(model=nlp.meta["name"], pipes=nlp.pipe_names))
    return cast("Elmo", nlp.get_pipe(names[-1]))


def _other_than_pipeline(model: str, weights_option: str | None) -> str | None:
    """A message for what is no pipeline, but can be told what it is."""
    from ..weights.source import is_pipeline

    path = Path(model)
    if is_pipeline(path):
        return None
    if _is_weights(model):
        advice = "the path or the name of a saved spaCy pipeline"
        if weights_option is not None:
            advice = f"{weights_option} {model} for the weights alone, or {advice}"
        return Errors.E483.format(model=model, advice=advice)
    found = [str(child) for child in _children(path) if is_pipeline(child)]
    if not found:
        return None
    count = f"{len(found)} pipeline{'s' if len(found) > 1 else ''}"
    return Errors.E484.format(model=model, count=count, found=", ".join(found[:_MOST_SHOWN]))


def _is_weights(model: str) -> bool:
    from ..weights.embedded import EMBEDDED_MODELS
    from ..weights.known_models import find_known_model
    from ..weights.local_files import find_in_directory

    if not os.path.isdir(model):
        return model in EMBEDDED_MODELS or find_known_model(model) is not None
    try:
        find_in_directory(Path(model))
    except WeightsError:
        return False
    return True


def _children(directory: Path) -> list[Path]:
    try:
        return sorted(directory.iterdir())
    except (OSError, ValueError):  # the latter for a name that no path can have
        return []


def _broken_file(directory: Path) -> str | None:
    """Name the file that is broken, where that can be told: the errors of its readers do not."""
    from spacy.util import load_config, load_meta

    for name, read in (("meta.json", load_meta), ("config.cfg", load_config)):
        path = directory / name
        try:
            if path.is_file():
                read(path)
        except Exception as error:  # as above
            return f"{name}: {detail_of(error)}"
    return None
