"""Read and write the pair options.json + weights.hdf5, the format of bilm-tf and AllenNLP and of most ELMo models in the
wild."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from ..errors import Errors, WeightsError
from ..lm.bilm import BiLM
from ..lm.config import BiLMConfig, InitialState
from ..lm.softmax import FullSoftmax, OutputHead
from .bilm_options import options_of, read_options
from .bilm_tensors import SOFTMAX_BIAS, SOFTMAX_WEIGHT, read_bilm, read_head, tensors_of
from .bilm_vocabulary import VOCABULARY_FILE, vocabulary_bytes
from .hdf5_datasets import open_hdf5
from .hdf5_target import Hdf5Target
from .modules import is_finite


def load_bilm_hdf5(
    options_path: str | Path,
    weights_path: str | Path,
    initial_state: InitialState = "canonical",
    vocabulary_path: str | Path | None = None,
    notes: list[str] | None = None,
) -> BiLM:
    """Read a biLM in the format of bilm-tf and AllenNLP.

    options_path (str | Path): The options.json. `n_characters` is not used: the weights tell.
    weights_path (str | Path): The hdf5 file. Only the biLM is read from it.
    initial_state (str): Where every sentence starts, see BiLMConfig. "canonical" comes closest to the originals, which
        carry their state from batch to batch, with output that depends on nothing but the sentence.
    vocabulary_path (str | Path | None): The words of the rows of a biLM over a table of words, one a line, `<S>` and
        `</S>` among them. Other words have the vector of `<UNK>`, or zeros without one. A biLM over characters has no
        need of it.
    notes (list[str] | None): Sentences on what was assumed and what was ignored are appended.
    RETURNS (BiLM): float32 parameters that require no gradient.
    RAISES (WeightsError): E120 if a file cannot be read; E121–E125 for options that describe no biLM of this kind; E126
        without h5py; E127–E133 for weights that are damaged, unsafe or do not fit the options; E140, E142 for a
        vocabulary that is none or not theirs.
    RAISES (ConfigError): E001 if `initial_state` is unknown.
    """
    vocabulary_path = None if vocabulary_path is None else Path(vocabulary_path)
    options = read_options(Path(options_path), initial_state, vocabulary_path)
    with open_hdf5(Path(weights_path)) as file:
        bilm = read_bilm(file, options.config, options.vocabularies)
    if notes is not None:
        notes += options.notes
    return bilm


def load_softmax_hdf5(weights_path: str | Path, projection: int) -> OutputHead | None:
    """Read the output head, which some hdf5 files hold beside the biLM (the datasets `softmax/W` and `softmax/b`).

    weights_path (str | Path): The hdf5 file.
    projection (int): `projection` of the biLM's config.
    RETURNS (OutputHead | None): A full softmax in float32, None if the file has none.
    RAISES (WeightsError): E120, E126–E133 as in `load_bilm_hdf5`.
    """
    with open_hdf5(Path(weights_path)) as file:
        return read_head(file, projection)


def save_bilm_hdf5(
    bilm: BiLM,
    options_path: str | Path,
    weights_path: str | Path,
    head: OutputHead | None = None,
    vocabulary: Sequence[str] | None = None,
) -> list[str]:
    """Write a biLM in the format of bilm-tf and AllenNLP; what was read from it comes out bit for bit.

    All files are written in full beside their places and then moved there. Whenever that is cut short, either the old
    model stands or there is no options.json; never do files of two models stand together.

    bilm (BiLM): The model.
    options_path (str | Path): The options.json to write.
    weights_path (str | Path): The hdf5 file to write, float32.
    head (OutputHead | None): A full softmax, to be written beside it as `softmax/W` and `softmax/b`.
    vocabulary (Sequence[str] | None): The words of the softmax, to be written as `vocab.txt` beside the weights; for a
        biLM over a table of words, those of the table are, whatever is given.
    RETURNS (list[str]): Sentences on what the format does not hold, and on who cannot read this model.
    RAISES (WeightsError): E126 without h5py; E134 if the head, E135 if the biLM is of a kind that the format cannot say;
        E136 for weights that are not finite; E141 for a word that a vocabulary file cannot hold.
    RAISES (OSError): If a file cannot be written.
    """
    options_path, weights_path = Path(options_path), Path(weights_path)
    full_softmax = _require_full_softmax(head, bilm.config.projection)
    texts = {options_path: (json.dumps(options_of(bilm.config), indent=2) + "\n").encode("utf-8")}
    vocabulary = bilm.encoder.vocabularies["words"] if bilm.config.token_encoder == "words" else vocabulary
    if vocabulary is not None:
        texts[weights_path.with_name(VOCABULARY_FILE)] = vocabulary_bytes(vocabulary)
    with ExitStack() as stack:
        new = {path: stack.enter_context(_beside(path)) for path in (weights_path, *texts)}
        _write_tensors(new[weights_path], _all_tensors(bilm, full_softmax), weights_path)
        for path, text in texts.items():
            new[path].write_bytes(text)
        for path in new.values():
            _flush(path)
        aside = stack.enter_context(_beside(options_path))
        _move_together(new, options_path, None if _are_there(texts) else aside)
    return _limits(bilm.config)


def _require_full_softmax(head: OutputHead | None, projection: int) -> FullSoftmax | None:
    if head is None or isinstance(head, FullSoftmax) and head.settings["projection"] == projection:
        return head
    raise WeightsError(Errors.E134.format(found=head.settings, projection=projection))


def _all_tensors(bilm: BiLM, head: FullSoftmax | None) -> Iterator[tuple[str, NDArray[np.float32]]]:
    yield from tensors_of(bilm)
    if head is not None:
        for name, parameter in ((SOFTMAX_WEIGHT, head.output.weight), (SOFTMAX_BIAS, head.output.bias)):
            yield name, parameter.detach().to("cpu", torch.float32).numpy()


def _write_tensors(path: Path, tensors: Iterator[tuple[str, NDArray[np.float32]]], target: Path) -> None:
    try:
        import h5py
    except ImportError as error:
        raise WeightsError(Errors.E126.format(path=target)) from error
    with Hdf5Target(path) as output:
        with h5py.File(output, "w") as file:
            for name, values in tensors:
                if not is_finite(torch.from_numpy(values)):
                    raise WeightsError(Errors.E136.format(name=name))
                # Without times the same model always gives the same file.
                file.create_dataset(name, data=values, track_times=False)
                output.check()
        output.check()


@contextmanager
def _beside(path: Path) -> Iterator[Path]:
    """Where to write a file before it is moved to its place."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        yield beside
    finally:
        beside.unlink(missing_ok=True)


def _flush(path: Path) -> None:
    with open(path, "rb") as file:
        os.fsync(file.fileno())


def _are_there(texts: Mapping[Path, bytes]) -> bool:
    """Whether only the weights are new."""
    with suppress(FileNotFoundError):
        return all(path.read_bytes() == text for path, text in texts.items())
    return False


def _move_together(new: Mapping[Path, Path], options: Path, aside: Path | None) -> None:
    """Move files to their places, the options last. The old ones are set aside if need be: they never stand beside new
    weights, whose shapes may fit though the model is another."""
    if aside is not None:
        with suppress(FileNotFoundError):
            os.replace(options, aside)
    try:
        weights, *others = (path for path in new if path != options)
        os.replace(new[weights], weights)
    except BaseException:
        if aside is not None and aside.exists():
            os.replace(aside, options)
        raise
    for path in (*others, options):
        os.replace(new[path], path)


def _limits(config: BiLMConfig) -> list[str]:
    """What the format does not hold, and what AllenNLP 2.10 and bilm-tf cannot do though the format can hold it."""
    over_words = config.token_encoder == "words"
    allennlp = {
        "reads whole words": over_words,
        "has no skip connections": not config.skip_connections,
        "has no projection of its characters": not config.has_character_projection and not over_words,
        "has no projection of its LSTMs": not config.has_lstm_projection,
        f"reads words of {config.max_characters} characters and not 50": config.max_characters != 50 and not over_words,
    }
    bilm_tf = {
        "has more projections than LSTM cells": config.projection > config.cells,
        "has more projections than filters": config.projection > config.n_filters and not over_words,
        f"has {config.n_layers} layers, more than 8": config.n_layers > 8,
    }
    notes = [f"The initial state '{config.initial_state}' is not part of the format: give it again when reading."]
    for program, limits in (("AllenNLP", allennlp), ("bilm-tf", bilm_tf)):
        met = [limit for limit, is_met in limits.items() if is_met]
        if met:
            notes.append(f"{program} cannot read this model: it {' and '.join(met)}.")
    return notes
