"""`python -m spacy elmo embed`: the vectors of many texts, in a file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from ..errors import CorpusError, Errors, PipelineError
from . import elmo_cli
from .messages import errors_as_messages
from .text_lines import STANDARD_INPUT, TextLine, read_texts

if TYPE_CHECKING:
    from spacy.language import Language
    from spacy.tokens import Doc

    from ..pipeline.component import Elmo

# Texts whose vectors are in memory together have so many characters, unless one alone has more.
_BATCH_CHARACTERS = 200_000


class Layers(str, Enum):
    """What is written of each token."""

    mixed = "mixed"
    all = "all"


@elmo_cli.command("embed")
def embed_cli(
    input_path: Path = typer.Argument(..., metavar="INPUT", help="File with a text a line; - for standard input."),
    output_path: Path = typer.Argument(..., metavar="OUTPUT", help="File to write: .npz, or .h5 or .hdf5 with h5py."),
    model: str = typer.Option(None, help="Path or name of a saved spaCy pipeline that has an elmo pipe."),
    source: Path = typer.Option(None, help="Weights directory. Default: the model that comes with spacy-elmo."),
    lang: str = typer.Option("en", help="Language whose tokenizer is used where no pipeline is given."),
    layers: Layers = typer.Option(Layers.mixed, help="The mix of the layers, or all layers side by side."),
    half: bool = typer.Option(False, "--half", help="Write float16 in place of float32."),
    jsonl: bool = typer.Option(
        None,
        "--jsonl/--no-jsonl",
        help='Lines are JSON objects with a "text". Default: if INPUT ends in .jsonl.',
    ),
    batch_size: int = typer.Option(128, min=1, help="Texts that are read together."),
    gpu_id: int = typer.Option(-1, help="GPU to use, -1 for the CPU."),
) -> None:
    """Write the vectors of all tokens of many texts to a file, in memory that does not grow with it."""
    from spacy.cli._util import setup_gpu

    if model is not None and source is not None:
        raise typer.BadParameter("A pipeline brings its weights along: pass --model or --source, not both.")
    setup_gpu(gpu_id, silent=True)
    with errors_as_messages():
        nlp = _blank_pipeline(lang, source) if model is None else _saved_pipeline(model)
        texts, tokens = embed_texts(nlp, input_path, output_path, layers.value, half, jsonl, batch_size)
    print(f"Wrote {tokens:,} tokens of {texts:,} texts to {output_path}")


def embed_texts(
    nlp: Language,
    input_path: Path,
    output_path: Path,
    layers: str = "mixed",
    half: bool = False,
    jsonl: bool | None = None,
    batch_size: int = 128,
) -> tuple[int, int]:
    """Run a pipeline on all texts of a file and write their vectors, as `vector_files` says.

    Whitespace tokens have zeros.

    nlp (Language): Has an elmo pipe; the last one counts, and stores from now on what is asked for.
    input_path (Path): A text a line; "-" for standard input.
    output_path (Path): .npz, .h5 or .hdf5.
    layers (str): "mixed" or "all".
    half (bool): Write float16 instead of float32.
    jsonl (bool | None): Whether lines are JSON objects; by the suffix if None.
    batch_size (int): Texts that are read together.
    RETURNS (tuple[int, int]): Texts and tokens written.
    RAISES (ElmoError): E400–E408, and errors of the pipe.
    """
    from tqdm import tqdm

    from .vector_files import vector_writer

    elmo = _elmo_pipe(nlp)
    elmo.store, elmo.half = ("layers" if layers == "all" else "mixed"), False
    n_layers = elmo.mix.get_dim("nL")
    width = elmo.model.get_dim("nO")
    row_shape = (n_layers, width) if layers == "all" else (width,)
    lines = _within_limit(read_texts(input_path, jsonl), input_path, nlp.max_length)
    is_file = input_path != STANDARD_INPUT and input_path.is_file()
    size = input_path.stat().st_size if is_file else None
    with (
        vector_writer(output_path, row_shape, half) as writer,
        tqdm(total=size, unit="B", unit_scale=True, desc="embedding") as bar,
    ):
        for batch in _batches(lines, batch_size):
            # Words that are new to spaCy's vocabulary are forgotten after each batch.
            with nlp.memory_zone():
                for doc in nlp.pipe([line.text for line in batch], batch_size=batch_size):
                    writer.write(doc.text, _offsets(doc), doc._.elmo_layers if layers == "all" else doc._.elmo)
            bar.update(sum(line.size for line in batch))
            bar.set_postfix(texts=writer.texts, tokens=writer.tokens)
    return writer.texts, writer.tokens


def _blank_pipeline(lang: str, source: Path | None) -> Language:
    import spacy

    try:
        nlp = spacy.blank(lang)
    except ImportError as error:
        raise PipelineError(Errors.E408.format(model=lang, detail=error)) from error
    nlp.add_pipe("elmo", config={"model": {"source": None if source is None else str(source)}})
    # spaCy's limit guards parsers; nothing here needs it.
    nlp.max_length = 1 << 30
    return nlp


def _saved_pipeline(model: str) -> Language:
    import spacy

    try:
        return spacy.load(model)
    except OSError as error:
        raise PipelineError(Errors.E408.format(model=model, detail=error)) from error


def _elmo_pipe(nlp: Language) -> Elmo:
    names = [name for name in nlp.pipe_names if nlp.get_pipe_meta(name).factory == "elmo"]
    if not names:
        raise PipelineError(Errors.E407.format(model=nlp.meta["name"], pipes=nlp.pipe_names))
    pipe: Any = nlp.get_pipe(names[-1])
    elmo: Elmo = pipe
    return elmo


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
