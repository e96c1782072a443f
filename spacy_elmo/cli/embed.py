"""`python -m spacy elmo embed`: the vectors of many texts, in a file."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from ..errors import CorpusError, Errors, PipelineError, WeightsError, detail_of
from . import elmo_cli
from .messages import errors_as_messages
from .models import SOURCE_HELP, load_noting, print_notes
from .pipelines import add_elmo, blank_pipeline, elmo_pipe, saved_pipeline
from .text_lines import STANDARD_INPUT, TextLine, read_texts

if TYPE_CHECKING:
    from spacy.language import Language
    from spacy.tokens import Doc

    from ..weights.local_files import LocalFiles
    from .sentence_files import SentenceWriter
    from .vector_files import VectorWriter

# Texts whose vectors are in memory together have so many characters, unless one alone has more.
_BATCH_CHARACTERS = 200_000


class Layers(str, Enum):
    """What is written of each token."""

    mixed = "mixed"
    all = "all"
    average = "average"
    top = "top"


class Layout(str, Enum):
    """How it is written."""

    columns = "columns"
    allennlp = "allennlp"
    bilm_tf = "bilm-tf"


@elmo_cli.command("embed")
def embed_cli(
    input_path: Path = typer.Argument(..., metavar="INPUT", help="File with a text a line; - for standard input."),
    output_path: Path = typer.Argument(..., metavar="OUTPUT", help="File to write: .npz, or .h5 or .hdf5 with h5py."),
    model: str = typer.Option(None, help="Path or name of a saved spaCy pipeline that has an elmo pipe."),
    source: str = typer.Option(None, help=f"{SOURCE_HELP} Default: the model that comes with spacy-elmo."),
    lang: str = typer.Option("en", help="Language whose tokenizer is used where no pipeline is given."),
    format: Layout = typer.Option(
        Layout.columns,
        help="columns: all texts in a few arrays; allennlp, bilm-tf: as their commands wrote HDF5 files.",
    ),
    layers: Layers = typer.Option(
        None,
        help="The mix of the pipe, all layers side by side, their average, or the last. Default: mixed for columns, else all.",
    ),
    words: bool = typer.Option(
        None, "--words/--no-words", help="Split lines at spaces only. Default: no for columns, else yes, as they did."
    ),
    forget_sentences: bool = typer.Option(False, "--forget-sentences", help="allennlp: leave sentence_to_index out."),
    half: bool = typer.Option(False, "--half", help="Write float16 in place of float32."),
    jsonl: bool = typer.Option(
        None,
        "--jsonl/--no-jsonl",
        help='Lines are JSON objects with a "text". Default: if INPUT ends in .jsonl.',
    ),
    batch_size: int = typer.Option(128, min=1, help="Texts that are read together."),
    offline: bool = typer.Option(False, "--offline", help="Download nothing."),
    gpu_id: int = typer.Option(-1, help="GPU to use, -1 for the CPU."),
) -> None:
    """Write the vectors of all tokens of many texts to a file, in memory that does not grow with it."""
    if model is not None and source is not None:
        raise typer.BadParameter("A pipeline brings its weights along: pass --model or --source, not both.")
    is_columns = format is Layout.columns
    layers = layers or (Layers.mixed if is_columns else Layers.all)
    if format is Layout.bilm_tf and layers is not Layers.all:
        raise typer.BadParameter("Files of bilm-tf have all layers: leave --layers out, or pass --layers all.")
    notes: list[str] = []
    with errors_as_messages():
        _check_output(output_path, format.value)
        _use_gpu(gpu_id)
        nlp = _blank_pipeline(lang, source, offline, notes) if model is None else saved_pipeline(model, "--source")
        texts, tokens = embed_texts(
            nlp,
            input_path,
            output_path,
            layers.value,
            half,
            jsonl,
            batch_size,
            format=format.value,
            split_at_spaces=not is_columns if words is None else words,
            with_index=not forget_sentences,
        )
    print(f"Wrote {tokens:,} tokens of {texts:,} texts to {output_path}")
    print_notes(notes)


def embed_texts(
    nlp: Language,
    input_path: Path,
    output_path: Path,
    layers: str = "mixed",
    half: bool = False,
    jsonl: bool | None = None,
    batch_size: int = 128,
    *,
    format: str = "columns",
    split_at_spaces: bool = False,
    with_index: bool = True,
) -> tuple[int, int]:
    """Run a pipeline on all texts of a file and write their vectors.

    Whitespace tokens have zeros.

    nlp (Language): Has an elmo pipe; the last one counts, and stores from now on what is asked for.
    input_path (Path): A text a line; "-" for standard input.
    output_path (Path): .npz, .h5 or .hdf5.
    layers (str): "mixed", "all", "average" or "top".
    half (bool): Write float16 instead of float32.
    jsonl (bool | None): Whether lines are JSON objects; by the suffix if None.
    batch_size (int): Texts that are read together.
    format (str): "columns", as `vector_files` says; "allennlp" or "bilm-tf", as `sentence_files` says.
    split_at_spaces (bool): Whether words are what stands between spaces, in place of spaCy's tokens.
    with_index (bool): Whether "allennlp" keeps the lines.
    RETURNS (tuple[int, int]): Texts and tokens written.
    RAISES (ElmoError): E400–E407, and errors of the pipe.
    """
    from tqdm import tqdm

    elmo = elmo_pipe(nlp)
    elmo.store, elmo.half = ("mixed" if layers == "mixed" else "layers"), False
    n_layers = elmo.mix.get_dim("nL")
    width = elmo.model.get_dim("nO")
    row_shape = (n_layers, width) if layers == "all" else (width,)
    lines = _within_limit(read_texts(input_path, jsonl), input_path, nlp.max_length)
    is_file = input_path != STANDARD_INPUT and input_path.is_file()
    size = input_path.stat().st_size if is_file else None
    with (
        _writer(output_path, format, row_shape, half, with_index) as writer,
        tqdm(total=size, unit="B", unit_scale=True, desc="embedding") as bar,
    ):
        for batch in _batches(lines, batch_size):
            # Words that are new to spaCy's vocabulary are forgotten after each batch.
            with nlp.memory_zone():
                texts = [_words_of(nlp, line.text) if split_at_spaces else line.text for line in batch]
                for line, doc in zip(batch, nlp.pipe(texts, batch_size=batch_size)):
                    text = doc.text if format == "columns" else line.text.strip()
                    writer.write(text, _offsets(doc), _vectors(doc, layers))
            bar.update(sum(line.size for line in batch))
            bar.set_postfix(texts=writer.texts, tokens=writer.tokens)
    return writer.texts, writer.tokens


def _check_output(path: Path, format: str) -> None:
    from .sentence_files import check_sentence_output
    from .vector_files import check_output

    (check_output if format == "columns" else check_sentence_output)(path)


def _writer(
    path: Path, format: str, row_shape: tuple[int, ...], half: bool, with_index: bool
) -> AbstractContextManager[VectorWriter | SentenceWriter]:
    from .sentence_files import sentence_writer
    from .vector_files import vector_writer

    if format == "columns":
        return vector_writer(path, row_shape, half)
    return sentence_writer(path, half, with_index and format == "allennlp")


def _words_of(nlp: Language, text: str) -> Doc:
    from spacy.tokens import Doc

    return Doc(nlp.vocab, words=text.split())


def _vectors(doc: Doc, layers: str) -> Any:
    if layers == "mixed":
        return doc._.elmo
    found = doc._.elmo_layers
    if layers == "all":
        return found
    return found[:, -1] if layers == "top" else found.mean(axis=1)


def _use_gpu(gpu_id: int) -> None:
    from spacy.cli._util import setup_gpu

    try:
        setup_gpu(gpu_id, silent=True)
    except (ValueError, RuntimeError) as error:
        raise PipelineError(Errors.E414.format(gpu_id=gpu_id, detail=detail_of(error))) from error


def _blank_pipeline(lang: str, source: str | None, offline: bool, notes: list[str]) -> Language:
    nlp = blank_pipeline(lang)
    if source is None:
        add_elmo(nlp)
    else:
        model = load_noting(_locate(source, offline))
        notes += model.notes
        add_elmo(nlp, model.bilm)
    # spaCy's limit guards parsers; nothing here needs it.
    nlp.max_length = 1 << 30
    return nlp


def _locate(source: str, offline: bool) -> LocalFiles:
    """As `locate`, but advise what this command can do with a pipeline.

    RAISES (WeightsError): E482 for a saved pipeline, else as `locate`.
    """
    from ..weights.source import is_pipeline, locate

    try:
        return locate(source, offline=offline)
    except WeightsError:
        path = Path(os.path.expanduser(source))
        if not is_pipeline(path):
            raise
        raise WeightsError(Errors.E482.format(path=path)) from None


def _within_limit(lines: Iterable[TextLine], path: Path, limit: int) -> Iterator[TextLine]:
    for line in lines:
        if len(line.text) > limit:
            detail = {"line": line.number, "length": len(line.text), "limit": limit}
            raise CorpusError(Errors.E403.format(path=path, **detail))
        yield line


def _batches(lines: Iterable[TextLine], size: int) -> Iterator[list[TextLine]]:
    batch: list[TextLine] = []
    characters = 0
    for line in lines:
        if batch and (len(batch) == size or characters + len(line.text) > _BATCH_CHARACTERS):
            yield batch
            batch, characters = [], 0
        batch.append(line)
        characters += len(line.text)
    if batch:
        yield batch


def _offsets(doc: Doc) -> Any:
    import numpy as np
    from spacy.attrs import IDX, LENGTH

    positions = doc.to_array([IDX, LENGTH]).astype(np.int64).reshape(len(doc), 2)
    positions[:, 1] += positions[:, 0]
    return positions
