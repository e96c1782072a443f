"""A model of random weights in the format of bilm-tf, written without any code of spacy_elmo.weights but the reader."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spacy_elmo.errors import WeightsError
from spacy_elmo.lm.bilm import BiLM
from spacy_elmo.lm.config import BiLMConfig
from spacy_elmo.weights.bilm_hdf5 import load_bilm_hdf5
from tests.golden import ATOL, Golden
from tests.oracle import random_parameters

h5py = pytest.importorskip("h5py")

CONFIG = BiLMConfig(
    character_dim=3,
    filters=((1, 4), (2, 2), (3, 3)),
    max_characters=8,
    n_highway=2,
    projection=5,
    cells=6,
    n_layers=2,
    initial_state="canonical",
)
WORDS = ["<S>", "</S>", "<UNK>", "The", "cat", "sat", "naïve", "."]
WORDS_CONFIG = BiLMConfig(
    token_encoder="words", n_words=len(WORDS), projection=5, cells=6, n_layers=2, initial_state="canonical"
)


def bilm_tf_options(config: BiLMConfig = CONFIG) -> dict[str, Any]:
    lstm = {
        "dim": config.cells,
        "projection_dim": config.projection,
        "n_layers": config.n_layers,
        "use_skip_connections": config.skip_connections,
        "cell_clip": config.cell_clip,
        "proj_clip": config.projection_clip,
    }
    if config.token_encoder == "words":
        return {"lstm": lstm, "n_tokens_vocab": config.n_words}
    char_cnn = {
        "embedding": {"dim": config.character_dim},
        "filters": [list(pair) for pair in config.filters],
        "n_highway": config.n_highway,
        "n_characters": 262,
        "max_characters_per_token": config.max_characters,
        "activation": config.activation,
    }
    return {"lstm": lstm, "char_cnn": char_cnn}


def bilm_tf_datasets(config: BiLMConfig, parameters: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The parameters as bilm-tf's dump names and orders them."""
    if config.token_encoder == "words":
        return {"embedding": parameters["encoder.words"], **_lstm_datasets(config, parameters)}
    datasets = {"char_embed": parameters["encoder.characters"]}
    for i, (width, number) in enumerate(config.filters):
        weight = parameters[f"encoder.convolutions.{i}.weight"]
        datasets[f"CNN/W_cnn_{i}"] = weight.reshape(1, width, config.character_dim, number)
        datasets[f"CNN/b_cnn_{i}"] = parameters[f"encoder.convolutions.{i}.bias"]
    for k in range(config.n_highway):
        for ours, theirs in (("transform", "transform"), ("gate", "carry")):
            datasets[f"CNN_high_{k}/W_{theirs}"] = parameters[f"encoder.highways.{k}.{ours}_weight"]
            datasets[f"CNN_high_{k}/b_{theirs}"] = parameters[f"encoder.highways.{k}.{ours}_bias"]
    if config.n_filters != config.projection:
        datasets["CNN_proj/W_proj"] = parameters["encoder.projection.weight"]
        datasets["CNN_proj/b_proj"] = parameters["encoder.projection.bias"]
    return {**datasets, **_lstm_datasets(config, parameters)}


def _lstm_datasets(config: BiLMConfig, parameters: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    datasets = {}
    for d, direction in enumerate(("forward_lm", "backward_lm")):
        for layer in range(config.n_layers):
            ours, theirs = f"{direction}.{layer}", f"RNN_{d}/RNN/MultiRNNCell/Cell{layer}/LSTMCell"
            kernel = np.concatenate([parameters[f"{ours}.input_weight"], parameters[f"{ours}.recurrent_weight"]])
            for name, gates in (("W_0", kernel), ("B", parameters[f"{ours}.bias"])):
                input_gate, forget, output, candidate = np.split(gates, 4, axis=-1)
                datasets[f"{theirs}/{name}"] = np.concatenate([input_gate, candidate, forget, output], axis=-1)
            if config.cells != config.projection:
                datasets[f"{theirs}/W_P_0"] = parameters[f"{ours}.projection_weight"]
    return datasets


def random_model(config: BiLMConfig) -> dict[str, np.ndarray]:
    """Parameters by the names of BiLM's state_dict."""
    if config.token_encoder == "characters":
        return random_parameters(config, seed=3, dtype="float32")
    over_characters = replace(CONFIG, projection=config.projection, cells=config.cells, n_layers=config.n_layers)
    parameters = random_parameters(over_characters, seed=3, dtype="float32")
    table = np.random.default_rng(4).normal(size=(config.n_words, config.projection)).astype("float32")
    lstms = {name: values for name, values in parameters.items() if not name.startswith("encoder.")}
    return {"encoder.words": table, **lstms}


def assert_state_equals(bilm: BiLM, parameters: dict[str, np.ndarray]) -> None:
    state = bilm.state_dict()
    assert set(state) == set(parameters)
    for name, values in parameters.items():
        np.testing.assert_array_equal(state[name].numpy(), values, err_msg=name)


def assert_carried_layers_are_golden(bilm: BiLM, golden: Golden) -> None:
    """Batch after batch in carry mode, as the original ran them."""
    state, compared = None, 0
    for batch, expected in zip(golden.batches, golden.top, strict=True):
        output = bilm(batch, state=state)
        state = output.state
        for layers, top in zip(output.split(), expected, strict=True):
            np.testing.assert_allclose(layers[:, -1].numpy(), top, rtol=0, atol=ATOL)
            compared += 1
    assert compared == 30


def read_datasets(path: Path) -> dict[str, np.ndarray]:
    """Everything in an hdf5 file, by name."""
    datasets = {}

    def collect(name: str, found: Any) -> None:
        if isinstance(found, h5py.Dataset):
            datasets[name] = found[...]

    with h5py.File(path, "r") as file:
        file.visititems(collect)
    return datasets


class HDF5Model:
    """A model of random weights on disk, to be changed before it is read."""

    def __init__(self, folder: Path, config: BiLMConfig = CONFIG) -> None:
        folder.mkdir(exist_ok=True)
        self.options, self.weights = folder / "options.json", folder / "weights.hdf5"
        self.vocabulary: Path | None = None
        if config.token_encoder == "words":
            self.vocabulary = folder / "words.txt"
            self.vocabulary.write_text("".join(f"{word}\n" for word in WORDS), encoding="utf8")
        self.parameters = random_model(config)
        self.settings = bilm_tf_options(config)
        self.write_options()
        with h5py.File(self.weights, "w") as file:
            for name, values in bilm_tf_datasets(config, self.parameters).items():
                file[name] = values

    def write_options(self) -> None:
        self.options.write_text(json.dumps(self.settings), encoding="utf8")

    def replace(self, name: str, values: np.ndarray | None, **options: Any) -> None:
        with h5py.File(self.weights, "a") as file:
            if name in file:
                del file[name]
            if values is not None:
                file.create_dataset(name, data=values, **options)

    def load(self) -> BiLM:
        return load_bilm_hdf5(self.options, self.weights, vocabulary_path=self.vocabulary)

    def assert_loads_as(self, config: BiLMConfig) -> None:
        bilm = self.load()
        assert bilm.config == config
        assert_state_equals(bilm, self.parameters)

    def assert_refused(self, code: str, *parts: str) -> None:
        with pytest.raises(WeightsError) as caught:
            self.load()
        message = str(caught.value)
        assert message.startswith(f"[ELMO-{code}]"), message
        for part in parts:
            assert part in message
