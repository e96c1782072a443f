"""A model from any source, in any format that is read, and out again in one that is written."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

from ..errors import ConfigError, Errors, WeightsError, detail_of, one_line
from ..lm.bilm import BiLM
from ..lm.config import InitialState
from ..lm.softmax import OutputHead, VocabularyEncoder
from .bilm_vocabulary import read_words, vocabulary_bytes
from .files import write_atomically
from .local_files import BILM_HDF5, MANY_LANGS, NATIVE, TF_CHECKPOINT, LocalFiles
from .native import CARD_FILE, SOFTMAX_FILE, VOCABULARY_FILE, load_bilm, load_head, save_bilm, save_head
from .source import Source, locate

WrittenFormat = Literal["native", "bilm-hdf5"]

_MOST_CARD_BYTES = 1 << 20


@dataclass
class LoadedModel:
    """A model and what is known of it.

    bilm (BiLM): The biLM, float32, without gradients.
    head (OutputHead | None): The output head, if it was asked for and is there.
    vocabulary (list[str] | None): The words that the head predicts, if it was asked for and they are there.
    facts (dict[str, Any]): "format" and "source"; "name", "about", "language", "licence", "urls", "sha256" (of downloaded
        files), "card" (the README.md of a native directory) where known.
    notes (list[str]): Sentences on what was assumed and what was ignored; what is warned of is among them.
    """

    bilm: BiLM
    head: OutputHead | None = None
    vocabulary: list[str] | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def load_model(
    source: Source,
    *,
    initial_state: InitialState | None = None,
    with_softmax: bool = False,
    offline: bool = False,
) -> LoadedModel:
    """Load a model from anything that `weights.source` tells of.

    source (str | Path | Sequence): A directory, zip file, pair, short name or address.
    initial_state (str | None): Where every sentence starts, see BiLMConfig. Default: as the model says; "canonical" for
        formats that do not say.
    with_softmax (bool): Load the output head and its vocabulary, too, where there are any.
    offline (bool): Fetch nothing from the web.
    RETURNS (LoadedModel): The model.
    RAISES (WeightsError): As `locate`, and as the reader of the format; E178 if vocabulary and softmax do not fit.
    RAISES (ConfigError): E001 if `initial_state` is unknown.
    """
    _require_state(initial_state)
    return load_files(locate(source, with_softmax=with_softmax, offline=offline), initial_state, with_softmax)


def load_files(files: LocalFiles, initial_state: InitialState | None = None, with_softmax: bool = False) -> LoadedModel:
    """Load a model whose files were found already.

    files (LocalFiles): From `locate`.
    initial_state (str | None), with_softmax (bool): As for `load_model`.
    RETURNS (LoadedModel): The model.
    RAISES (WeightsError): As the reader of the format; E178 if vocabulary and softmax do not fit.
    """
    model = _READERS[files.format](files, initial_state, with_softmax)
    model.facts = {"format": files.format, **files.facts, **model.facts}
    model.notes = [*files.notes, *model.notes]
    if with_softmax:
        _add_vocabulary(model, files)
    return model


def save_model(model: LoadedModel, output: str | Path, format: str = "native") -> list[str]:
    """Write a model.

    model (LoadedModel): The model.
    output (str | Path): The directory, made if need be.
    format (str): "native": what `load_bilm` reads, with softmax, vocabulary and model card. "bilm-hdf5": options.json and
        weights.hdf5 of bilm-tf and AllenNLP, with the softmax among the weights, vocabulary and model card.
    RETURNS (list[str]): Sentences on what the format does not hold.
    RAISES (WeightsError): E126, E134–E136, E141 if the model cannot be said in the format, E179 if a file cannot be
        written, E180 for another format.
    """
    output = Path(output)
    if format not in get_args(WrittenFormat):
        raise WeightsError(Errors.E180.format(format=format, known=", ".join(get_args(WrittenFormat))))
    try:
        return _save_native(model, output) if format == NATIVE else _save_bilm_hdf5(model, output)
    except OSError as error:
        raise WeightsError(Errors.E179.format(path=output, problem=detail_of(error))) from error


def _require_state(initial_state: str | None) -> None:
    states = get_args(InitialState)
    if initial_state is not None and initial_state not in states:
        raise ConfigError(Errors.E001.format(name="initial_state", value=initial_state, expected=f"one of {states}"))


def _read_native(files: LocalFiles, initial_state: InitialState | None, with_softmax: bool) -> LoadedModel:
    directory = files.paths["directory"]
    bilm = load_bilm(directory)
    if initial_state is not None:
        bilm.config = replace(bilm.config, initial_state=initial_state)
    head = load_head(directory) if with_softmax and (directory / SOFTMAX_FILE).is_file() else None
    card = directory / CARD_FILE
    facts = {"card": _read_card(card)} if card.is_file() else {}
    return LoadedModel(bilm, head, facts=facts)


def _read_bilm_hdf5(files: LocalFiles, initial_state: InitialState | None, with_softmax: bool) -> LoadedModel:
    from .bilm_hdf5 import load_bilm_hdf5, load_softmax_hdf5

    notes = _notes_on_state(initial_state)
    paths = files.paths
    state, vocabulary = initial_state or "canonical", paths.get("vocabulary")
    bilm = load_bilm_hdf5(paths["options"], paths["weights"], state, vocabulary, notes)
    head = None
    if with_softmax:
        head = load_softmax_hdf5(paths.get("softmax", paths["weights"]), bilm.config.projection)
        if head is None and "prefix" in paths:
            model = _read_tf_checkpoint(files, initial_state, with_softmax)
            prefix = paths["prefix"].name
            model.notes.append(f"The hdf5 file has no softmax: all weights were taken from the checkpoint {prefix}.")
            return model
    return LoadedModel(bilm, head, notes=notes)


def _read_tf_checkpoint(files: LocalFiles, initial_state: InitialState | None, with_softmax: bool) -> LoadedModel:
    from .tf_checkpoint import load_tf_checkpoint

    notes = _notes_on_state(initial_state)
    paths = files.paths
    state, vocabulary = initial_state or "canonical", paths.get("vocabulary")
    bilm, head = load_tf_checkpoint(paths["options"], paths["prefix"], state, vocabulary, notes)
    return LoadedModel(bilm, head if with_softmax else None, notes=notes)


def _read_many_langs(files: LocalFiles, initial_state: InitialState | None, with_softmax: bool) -> LoadedModel:
    from .many_langs import load_many_langs

    notes = _notes_on_state(initial_state)
    directory = files.paths["directory"]
    bilm = load_many_langs(directory, initial_state or "canonical", notes)
    if with_softmax and (directory / "classifier.pkl").is_file():
        notes.append("The classifier of ELMoForManyLangs was not read.")
    return LoadedModel(bilm, notes=notes)


_READERS: dict[str, Callable[[LocalFiles, InitialState | None, bool], LoadedModel]] = {
    NATIVE: _read_native,
    BILM_HDF5: _read_bilm_hdf5,
    TF_CHECKPOINT: _read_tf_checkpoint,
    MANY_LANGS: _read_many_langs,
}


def _notes_on_state(initial_state: str | None) -> list[str]:
    if initial_state is not None:
        return []
    return ["The format does not say where sentences start: the initial state 'canonical' was assumed."]


def _add_vocabulary(model: LoadedModel, files: LocalFiles) -> None:
    path = vocabulary_path(files)
    if path is not None:
        model.vocabulary = read_words(path)
        expected = None if model.head is None else model.head.settings["n_words"]
        if expected not in (None, len(model.vocabulary)):
            raise WeightsError(Errors.E178.format(path=path, found=len(model.vocabulary), expected=expected))
        if model.head is not None:
            model.head.bind(VocabularyEncoder(model.bilm, model.vocabulary))
    if model.head is None:
        model.notes.append("There is no softmax: the model gives vectors, but cannot tell how likely a word is.")


def vocabulary_path(files: LocalFiles) -> Path | None:
    """RETURNS (Path | None): The file with the words of a model, if it has one."""
    if files.format == NATIVE:
        path = files.paths["directory"] / VOCABULARY_FILE
        return path if path.is_file() else None
    return files.paths.get("vocabulary")


def _save_native(model: LoadedModel, output: Path) -> list[str]:
    if model.vocabulary is not None:
        words = gzip.compress(vocabulary_bytes(model.vocabulary), mtime=0)
        write_atomically(output / VOCABULARY_FILE, words)
    else:
        # What belongs to a model that was here before would be taken for a part of this one.
        (output / VOCABULARY_FILE).unlink(missing_ok=True)
    if model.head is not None:
        save_head(model.head, output)
    else:
        (output / SOFTMAX_FILE).unlink(missing_ok=True)
    save_bilm(model.bilm, output, model_card=model_card(model))
    return []


def _save_bilm_hdf5(model: LoadedModel, output: Path) -> list[str]:
    from .bilm_hdf5 import save_bilm_hdf5

    output.mkdir(parents=True, exist_ok=True)
    notes = save_bilm_hdf5(
        model.bilm, output / "options.json", output / "weights.hdf5", head=model.head, vocabulary=model.vocabulary
    )
    write_atomically(output / CARD_FILE, model_card(model).encode("utf-8"))
    return notes


def model_card(model: LoadedModel) -> str:
    """What is known of a model, in Markdown: its own card if it has one, else where it came from and what it is.

    model (LoadedModel): The model.
    RETURNS (str): The text.
    """
    facts = model.facts
    if isinstance(facts.get("card"), str):
        card: str = facts["card"]
        return card
    origin = facts.get("name") or one_line(Path(str(facts.get("source", "a biLM")).split("::")[-1]).name)
    lines = [f"# {origin}", "", "Converted by spacy-elmo.", "", "## Origin", ""]
    named = {"made by": "about", "format": "format", "language": "language"}
    lines += [f"- {title}: {facts[key]}" for title, key in named.items() if facts.get(key)]
    lines += [f"- address: {url}" for url in facts.get("urls", [])]
    lines += [f"- sha256 of {name}: `{value}`" for name, value in facts.get("sha256", {}).items()]
    lines += ["", "## Licence", "", f"{facts.get('licence', 'Not known: ask those who made the model.')}"]
    lines += ["", "## Architecture", ""]
    lines.append(f"- parameters: {sum(parameter.numel() for parameter in model.bilm.parameters()):,}")
    lines += [f"- {name}: {value}" for name, value in model.bilm.config.to_dict().items()]
    if model.notes:
        lines += ["", "## What was assumed and what was ignored", "", *(f"- {note}" for note in model.notes)]
    return "\n".join(lines) + "\n"


def _read_card(path: Path) -> str:
    try:
        with open(path, "rb") as file:
            return file.read(_MOST_CARD_BYTES).decode("utf-8", "replace")
    except OSError as error:
        raise WeightsError(Errors.E120.format(path=path, problem=detail_of(error))) from error
