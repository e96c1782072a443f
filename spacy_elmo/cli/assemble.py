"""`python -m spacy elmo assemble`: a pipeline on disk that brings a model along."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from ..errors import Errors, PipelineError
from . import elmo_cli
from .messages import errors_as_messages
from .models import SOURCE_HELP, load_noting, print_notes, require_new, whole_directory
from .pipelines import add_elmo, blank_pipeline

if TYPE_CHECKING:
    from spacy.language import Language

    from ..weights.formats import LoadedModel
    from ..weights.source import Source


@elmo_cli.command("assemble")
def assemble_cli(
    source: str = typer.Argument(..., help=SOURCE_HELP),
    output: Path = typer.Argument(..., help="Directory to write, new or empty."),
    lang: str = typer.Option(
        None, "--lang", "-l", help="Code of the language. Default: that of the model, if it is known."
    ),
    sentencizer: bool = typer.Option(False, "--sentencizer", help="Split texts into sentences at punctuation first."),
    offline: bool = typer.Option(False, "--offline", help="Download nothing."),
) -> None:
    """Make a pipeline for spacy.load: the tokenizer of a language, and the elmo pipe with the weights of a model."""
    with errors_as_messages():
        nlp, model = assemble(source, output, lang, sentencizer, offline)
    print(f"Wrote {output}: a pipeline for {nlp.lang!r} with {', '.join(nlp.pipe_names)}. Use it with spacy.load.")
    print_notes(model.notes)


def assemble(
    source: Source, output: Path, lang: str | None = None, sentencizer: bool = False, offline: bool = False
) -> tuple[Language, LoadedModel]:
    """Save a pipeline that has a model's weights and needs its source no more.

    source (str | Path | Sequence): As for `load_model`.
    output (Path): Directory to write, new or empty.
    lang (str | None): Code of the language. Default: that of the model.
    sentencizer (bool): Whether a sentencizer comes first.
    offline (bool): Download nothing.
    RETURNS (tuple[Language, LoadedModel]): The pipeline and the model.
    RAISES (ElmoError): E406 if the directory cannot be written, E430 if it is in use. (PipelineError): E415 for a language
        that spaCy does not have, E431 if none is known. (WeightsError): As `load_model`.
    """
    from ..weights.files import write_atomically
    from ..weights.formats import model_card
    from ..weights.native import CARD_FILE
    from ..weights.source import locate

    require_new(output)
    files = locate(source, offline=offline)
    lang = lang or files.facts.get("language")
    if lang is None:
        raise PipelineError(Errors.E431.format(source=files.facts["source"]))
    nlp = blank_pipeline(lang)
    model = load_noting(files)
    if sentencizer:
        nlp.add_pipe("sentencizer")
    add_elmo(nlp, model.bilm)
    nlp.meta.update(_meta(model.facts))
    with whole_directory(output) as fresh:
        nlp.to_disk(fresh)
        write_atomically(fresh / CARD_FILE, model_card(model).encode("utf-8"))
    return nlp, model


def _meta(facts: dict[str, Any]) -> dict[str, Any]:
    """What is known of the weights, where spaCy has a place for it."""
    named = facts.get("name")
    meta: dict[str, Any] = {"description": f"ELMo vectors{f' of {named}' if named else ''}"}
    if "licence" in facts:
        meta["license"] = facts["licence"]
    if "urls" in facts:
        meta["sources"] = list(facts["urls"])
    return meta
