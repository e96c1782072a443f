"""Pipelines as the commands build and load them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ..errors import ElmoError, Errors, PipelineError, detail_of

if TYPE_CHECKING:
    from spacy.language import Language

    from ..lm.bilm import BiLM
    from ..pipeline.component import Elmo


def blank_pipeline(lang: str) -> Language:
    """RETURNS (Language): A pipeline with nothing but the tokenizer of a language.

    RAISES (PipelineError): E415 if there is no such language.
    """
    import spacy

    try:
        return spacy.blank(lang)
    except Exception as error:  # each language has its own ways to fail
        raise PipelineError(Errors.E415.format(lang=lang, detail=detail_of(error))) from error


def saved_pipeline(model: str) -> Language:
    """RETURNS (Language): A pipeline that was saved or installed.

    RAISES (PipelineError): E408 if there is none, E413 if it cannot be loaded.
    """
    import spacy

    try:
        return spacy.load(model)
    except ElmoError:
        raise
    except OSError as error:
        raise PipelineError(Errors.E408.format(model=model, detail=detail_of(error))) from error
    except Exception as error:  # spaCy and the components of others raise what they like
        detail = _broken_file(Path(model)) or detail_of(error)
        raise PipelineError(Errors.E413.format(model=model, detail=detail)) from error


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
