"""Known input and known output of the original implementations, read without any code of spacy_elmo.weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from spacy_elmo.lm.config import BiLMConfig, InitialState

ATOL = 2e-6
MODELS = ("bilm-tf", "allennlp")


class Golden(NamedTuple):
    """options, weights (Path): The model. batches (list): Three sentences each. top (list): Per batch and sentence, the
    top layer (words, 2 * projection)."""

    options: Path
    weights: Path
    batches: list[list[list[str]]]
    top: list[list[NDArray[np.float32]]]


def read_golden(fixtures_dir: Path, model: str) -> Golden:
    """The ten batches that the original ran, in order; row k of a batch starts where row k of the last one ended."""
    h5py = _import_h5py()
    folder = fixtures_dir / ("bilm-tf/model" if model == "bilm-tf" else "allennlp/elmo")
    name = "lm_embeddings_sentences.json" if model == "bilm-tf" else "sentences.json"
    by_row = json.loads((folder / name).read_text(encoding="utf8"))
    batches = [[sentence.split() for sentence in batch] for batch in zip(*by_row, strict=True)]
    top_by_row = []
    for row in range(len(by_row)):
        with h5py.File(folder / f"lm_embeddings_{row}.hdf5", "r") as file:
            top_by_row.append([np.concatenate(list(file[str(i)][...]), axis=1) for i in range(len(batches))])
    top = [list(batch) for batch in zip(*top_by_row, strict=True)]
    return Golden(folder / "options.json", folder / "lm_weights.hdf5", batches, top)


def read_token_vectors(fixtures_dir: Path) -> tuple[list[str], NDArray[np.float32]]:
    """The 458 words of AllenNLP's vocabulary test and their vectors (458, projection)."""
    folder = fixtures_dir / "allennlp" / "elmo"
    words = (folder / "vocab_test.txt").read_text(encoding="utf8").split("\n")
    with _import_h5py().File(folder / "elmo_token_embeddings.hdf5", "r") as file:
        return words, file["embedding"][...]


def read_text_vectors(fixtures_dir: Path) -> tuple[list[str], NDArray[np.float32]]:
    """The 17 words of pytorch-fast-elmo and their vectors (17, projection)."""
    lines = (fixtures_dir / "pytorch-fast-elmo" / "lm_embd.txt").read_text(encoding="utf8").splitlines()
    rows = [line.split() for line in lines]
    return [row[0] for row in rows], np.array([row[1:] for row in rows], dtype="float32")


def oracle_inputs(
    options: Path, weights: Path, initial_state: InitialState
) -> tuple[BiLMConfig, dict[str, NDArray[np.float32]]]:
    """Config and parameters of a golden model by the names of BiLM's state_dict."""
    settings = json.loads(options.read_text(encoding="utf8"))
    lstm, char_cnn = settings["lstm"], settings["char_cnn"]
    config = BiLMConfig(
        character_dim=char_cnn["embedding"]["dim"],
        filters=tuple((width, number) for width, number in char_cnn["filters"]),
        max_characters=char_cnn["max_characters_per_token"],
        activation=char_cnn["activation"],
        n_highway=char_cnn["n_highway"],
        projection=lstm["projection_dim"],
        cells=lstm["dim"],
        n_layers=lstm["n_layers"],
        skip_connections=lstm["use_skip_connections"],
        cell_clip=lstm["cell_clip"],
        projection_clip=lstm["proj_clip"],
        initial_state=initial_state,
    )
    with _import_h5py().File(weights, "r") as file:
        return config, {**_encoder(file, config), **_lstms(file, config)}


def _encoder(file, config: BiLMConfig) -> dict[str, NDArray[np.float32]]:  # type: ignore[no-untyped-def]
    parameters = {"encoder.characters": file["char_embed"][...]}
    for i, (width, number) in enumerate(config.filters):
        rows = [
            file[f"CNN/W_cnn_{i}"][0, position, channel]
            for position in range(width)
            for channel in range(config.character_dim)
        ]
        parameters[f"encoder.convolutions.{i}.weight"] = np.array(rows).reshape(width * config.character_dim, number)
        parameters[f"encoder.convolutions.{i}.bias"] = file[f"CNN/b_cnn_{i}"][...]
    for k in range(config.n_highway):
        for ours, theirs in (("transform", "transform"), ("gate", "carry")):
            parameters[f"encoder.highways.{k}.{ours}_weight"] = file[f"CNN_high_{k}/W_{theirs}"][...]
            parameters[f"encoder.highways.{k}.{ours}_bias"] = file[f"CNN_high_{k}/b_{theirs}"][...]
    parameters["encoder.projection.weight"] = file["CNN_proj/W_proj"][...]
    parameters["encoder.projection.bias"] = file["CNN_proj/b_proj"][...]
    return parameters


def _lstms(file, config: BiLMConfig) -> dict[str, NDArray[np.float32]]:  # type: ignore[no-untyped-def]
    parameters = {}
    for d, direction in enumerate(("forward_lm", "backward_lm")):
        for layer in range(config.n_layers):
            cell = file[f"RNN_{d}/RNN/MultiRNNCell/Cell{layer}/LSTMCell"]
            i, j, f, o = np.split(cell["W_0"][...], 4, axis=1)
            weight = np.concatenate([i, f, o, j], axis=1)
            i, j, f, o = np.split(cell["B"][...], 4)
            parameters[f"{direction}.{layer}.input_weight"] = weight[: config.projection]
            parameters[f"{direction}.{layer}.recurrent_weight"] = weight[config.projection :]
            parameters[f"{direction}.{layer}.bias"] = np.concatenate([i, f, o, j])
            parameters[f"{direction}.{layer}.projection_weight"] = cell["W_P_0"][...]
    return parameters


def _import_h5py():  # type: ignore[no-untyped-def]
    import pytest

    return pytest.importorskip("h5py")
