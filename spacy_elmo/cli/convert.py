"""`python -m spacy elmo convert`: a model of any format, in one that is written here."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from . import elmo_cli
from .messages import errors_as_messages
from .models import SOURCE_HELP, load_noting, print_notes, require_new, whole_directory

if TYPE_CHECKING:
    from ..weights.formats import LoadedModel
    from ..weights.source import Source


class Format(str, Enum):
    """What is written."""

    native = "native"
    bilm_hdf5 = "bilm-hdf5"


@elmo_cli.command("convert")
def convert_cli(
    source: str = typer.Argument(..., help=SOURCE_HELP),
    output: Path = typer.Argument(..., help="Directory to write, new or empty."),
    format: Format = typer.Option(
        Format.native,
        help="native: what spacy-elmo reads; bilm-hdf5: options.json and weights.hdf5 of AllenNLP and bilm-tf.",
    ),
    softmax: bool = typer.Option(
        True, "--softmax/--no-softmax", help="Take the softmax and its vocabulary along, where there are any."
    ),
    offline: bool = typer.Option(False, "--offline", help="Download nothing."),
) -> None:
    """Read a model and write it in another format, bit for bit, with a model card that tells where it came from."""
    with errors_as_messages():
        model, notes = convert(source, output, format.value, softmax, offline)
    words = "" if model.head is None else f" and a softmax of {model.head.settings['n_words']:,} words"
    parameters = sum(parameter.numel() for parameter in model.bilm.parameters())
    print(f"Wrote {output} ({format.value}): {parameters:,} parameters{words}.")
    print_notes(notes)


def convert(
    source: Source, output: Path, format: str = "native", softmax: bool = True, offline: bool = False
) -> tuple[LoadedModel, list[str]]:
    """Read a model and write it in another format.

    source (str | Path | Sequence): As for `load_model`.
    output (Path): Directory to write, new or empty.
    format (str): "native" or "bilm-hdf5".
    softmax (bool): Take the output head and its vocabulary along, where there are any.
    offline (bool): Download nothing.
    RETURNS (tuple[LoadedModel, list[str]]): The model, and sentences on what was assumed, ignored and left out.
    RAISES (ElmoError): E406 if the directory cannot be written, E430 if it is in use. (WeightsError): As `load_model` and
        `save_model`.
    """
    from ..weights.formats import save_model
    from ..weights.source import locate

    require_new(output)
    files = locate(source, with_softmax=softmax, offline=offline)
    model = load_noting(files, with_softmax=softmax)
    with whole_directory(output) as fresh:
        limits = save_model(model, fresh, format)
    return model, [*model.notes, *limits]
