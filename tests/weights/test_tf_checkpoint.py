"""Checkpoints of bilm-tf: golden output, every scheme of names, and what is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from spacy_elmo.errors import ConfigError, ElmoWarning, WeightsError
from spacy_elmo.lm.config import BiLMConfig
from spacy_elmo.weights.tf_checkpoint import latest_checkpoint, load_tf_checkpoint
from tests.golden import MODELS, read_golden
from tests.weights.hdf5_model import (
    CONFIG,
    assert_carried_layers_are_golden,
    assert_state_equals,
    bilm_tf_datasets,
    bilm_tf_options,
    random_model,
    read_datasets,
)
from tests.weights.tf_writer import bilm_tf_variables, write_bundle, write_index

CELL = "RNN_0/rnn/multi_rnn_cell/cell_0/lstm_cell"


class Checkpoint:
    """A model of random weights as bilm-tf leaves it, to be changed before it is read."""

    def __init__(self, folder: Path, config: BiLMConfig = CONFIG) -> None:
        self.options, self.prefix = folder / "options.json", folder / "model.ckpt-1250"
        self.parameters = random_model(config)
        self.datasets = bilm_tf_datasets(config, self.parameters)
        random = np.random.default_rng(5)
        self.datasets["softmax/W"] = random.normal(size=(11, config.projection)).astype("float32")
        self.datasets["softmax/b"] = random.normal(size=11).astype("float32")
        self.variables = bilm_tf_variables(self.datasets)
        self.settings = bilm_tf_options(config)
        self.settings.update(bidirectional=True, n_tokens_vocab=11, batch_size=128, unroll_steps=20)
        self.settings["char_cnn"]["n_characters"] = 261

    def rename(self, pattern: str, replacement: str) -> None:
        self.variables = {re.sub(pattern, replacement, name): values for name, values in self.variables.items()}

    def load(self, **more: Any) -> Any:
        self.options.write_text(json.dumps(self.settings), encoding="utf8")
        write_bundle(self.prefix, self.variables)
        return load_tf_checkpoint(self.options, self.prefix, **more)

    def assert_loads_as(self, config: BiLMConfig) -> None:
        bilm, head = self.load()
        assert bilm.config == config
        assert_state_equals(bilm, self.parameters)
        np.testing.assert_array_equal(head.output.weight.detach().numpy(), self.datasets["softmax/W"])
        np.testing.assert_array_equal(head.output.bias.detach().numpy(), self.datasets["softmax/b"])

    def assert_refused(self, code: str, *parts: str) -> None:
        with pytest.raises(WeightsError) as caught:
            self.load()
        assert str(caught.value).startswith(f"[ELMO-{code}]"), caught.value
        for part in (str(self.prefix), *parts):
            assert part in str(caught.value)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    return Checkpoint(tmp_path)


# What is read.


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("n_shards", [1, 3])
def test_golden_sentences(fixtures_dir: Path, tmp_path: Path, model: str, n_shards: int) -> None:
    golden = read_golden(fixtures_dir, model)
    prefix = tmp_path / "model.ckpt-935588"
    write_bundle(prefix, bilm_tf_variables(read_datasets(golden.weights)), n_shards)
    bilm, head = load_tf_checkpoint(golden.options, prefix, initial_state="carry")
    assert head is None
    assert_carried_layers_are_golden(bilm, golden)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"n_layers": 1},
        {"n_layers": 4},
        {"activation": "tanh", "n_highway": 0, "skip_connections": False, "cell_clip": None},
        {"projection": 9, "cells": 9},
    ],
    ids=str,
)
def test_variants_load_bit_for_bit(tmp_path: Path, changes: dict[str, Any]) -> None:
    config = BiLMConfig.from_dict({**CONFIG.to_dict(), **changes})
    Checkpoint(tmp_path, config).assert_loads_as(config)


@pytest.mark.parametrize(
    ("pattern", "replacement"),
    [
        ("^lm/", ""),
        ("projection/kernel", "projection/weights"),
        ("lstm_cell/kernel", "lstm_cell/weights"),
        ("lstm_cell/bias", "lstm_cell/biases"),
        ("rnn/multi_rnn_cell/cell_", "rnn/MultiRNNCell/Cell"),
    ],
)
def test_other_names_of_variables(checkpoint: Checkpoint, pattern: str, replacement: str) -> None:
    checkpoint.rename(pattern, replacement)
    checkpoint.assert_loads_as(CONFIG)


def test_names_of_the_first_tensorflow(checkpoint: Checkpoint) -> None:
    """They are those that the hdf5 files kept."""
    checkpoint.variables = {f"lm/{name}": values for name, values in checkpoint.datasets.items()}
    checkpoint.assert_loads_as(CONFIG)


def test_other_optimizers_are_passed_over(checkpoint: Checkpoint) -> None:
    checkpoint.rename("/Adagrad$", "/Adam")
    checkpoint.variables[f"lm/{CELL}/kernel/Adam_1"] = np.zeros(3, "float32")
    checkpoint.variables["lm/CNN/b_cnn_0/ExponentialMovingAverage"] = np.zeros(3, "float32")
    checkpoint.variables["beta1_power"] = np.array(0.9, "float32")
    checkpoint.assert_loads_as(CONFIG)


def test_double_and_half_precision(checkpoint: Checkpoint) -> None:
    for name in ("lm/char_embed", f"lm/{CELL}/bias"):
        checkpoint.variables[name] = checkpoint.variables[name].astype("float64")
    checkpoint.parameters["encoder.projection.bias"] = np.arange(5, dtype="float32")
    checkpoint.variables["lm/CNN_proj/b_proj"] = np.arange(5, dtype="float16")
    checkpoint.assert_loads_as(CONFIG)


def test_checkpoint_without_softmax(checkpoint: Checkpoint) -> None:
    for name in [name for name in checkpoint.variables if "softmax" in name]:
        del checkpoint.variables[name]
    assert checkpoint.load()[1] is None


def test_path_may_be_that_of_the_index_and_a_string(checkpoint: Checkpoint) -> None:
    checkpoint.load()
    bilm, _ = load_tf_checkpoint(str(checkpoint.options), f"{checkpoint.prefix}.index")
    assert_state_equals(bilm, checkpoint.parameters)


def test_initial_state_and_notes(checkpoint: Checkpoint) -> None:
    del checkpoint.settings["lstm"]["n_layers"]
    config = BiLMConfig.from_dict({**CONFIG.to_dict(), "n_layers": 1})
    checkpoint.variables = bilm_tf_variables(bilm_tf_datasets(config, random_model(config)))
    notes: list[str] = ["before"]
    bilm, _ = checkpoint.load(initial_state="zero", notes=notes)
    assert bilm.config.initial_state == "zero"
    assert notes[:2] == ["before", "lstm.n_layers is not given: 1 was assumed, as bilm-tf does."]
    assert "n_characters" in notes[2]
    with pytest.raises(ConfigError, match="E001.*warm"):
        checkpoint.load(initial_state="warm")


def test_unknown_settings_are_warned_of_where_the_caller_is(checkpoint: Checkpoint) -> None:
    checkpoint.load()
    checkpoint.options.write_text(json.dumps({**checkpoint.settings, "clip_grad_norm": 5}), encoding="utf8")
    with pytest.warns(ElmoWarning, match="W120.*clip_grad_norm") as caught:
        load_tf_checkpoint(checkpoint.options, checkpoint.prefix)
    assert Path(caught[0].filename) == Path(__file__)


def test_bilm_is_frozen_float32_of_its_own_memory(checkpoint: Checkpoint) -> None:
    bilm, _ = checkpoint.load()
    assert not bilm.training
    assert all(p.dtype == torch.float32 and not p.requires_grad for p in bilm.parameters())
    for path in checkpoint.prefix.parent.glob("*.data-*"):
        path.write_bytes(b"\xff" * path.stat().st_size)
    assert_state_equals(bilm, checkpoint.parameters)


# What is refused.


@pytest.mark.parametrize(
    "name", ["char_embed", "CNN/b_cnn_1", "CNN_high_1/W_carry", f"{CELL}/projection/kernel", "softmax/W", "softmax/b"]
)
def test_missing_variable(checkpoint: Checkpoint, name: str) -> None:
    del checkpoint.variables[f"lm/{name}"], checkpoint.variables[f"lm/{name}/Adagrad"]
    checkpoint.assert_refused("E128")


def test_wrong_shape(checkpoint: Checkpoint) -> None:
    checkpoint.variables[f"lm/{CELL}/kernel"] = np.zeros((11, 24), "float32")
    checkpoint.assert_refused("E129", "(11, 24)", "(10, 24)")


def test_integers(checkpoint: Checkpoint) -> None:
    checkpoint.variables["lm/char_embed"] = np.zeros((261, 3), "int64")
    checkpoint.assert_refused("E130", "lm/char_embed")


def test_options_that_describe_fewer_layers(checkpoint: Checkpoint) -> None:
    checkpoint.settings["lstm"]["n_layers"] = 1
    checkpoint.assert_refused("E131", "RNN_1/RNN/MultiRNNCell/Cell1/LSTMCell/W_0")


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e300])
def test_values_that_are_not_finite(checkpoint: Checkpoint, value: float) -> None:
    values = checkpoint.variables["lm/softmax/W"].astype("float64")
    values[-1, -1] = value
    checkpoint.variables["lm/softmax/W"] = values
    checkpoint.assert_refused("E132", "'softmax/W'")


def test_many_variables_over_the_same_bytes(checkpoint: Checkpoint) -> None:
    """A small file can name its bytes again and again: what is built of them is bounded by the file all the same."""
    checkpoint.settings["lstm"].update(n_layers=50, projection_dim=64, dim=64)
    checkpoint.options.write_text(json.dumps(checkpoint.settings), encoding="utf8")
    cells = {f"{d}/{part}": values for d in "01" for part, values in {"kernel": (128, 256), "bias": (256,)}.items()}
    first = {
        f"lm/RNN_{name[0]}/rnn/multi_rnn_cell/cell_0/lstm_cell/{name[2:]}": np.zeros(shape, "float32")
        for name, shape in cells.items()
    }
    others = {name: values for name, values in checkpoint.variables.items() if "RNN" not in name and "proj" not in name}
    others.update({"lm/CNN_proj/W_proj": np.zeros((9, 64), "float32"), "lm/CNN_proj/b_proj": np.zeros(64, "float32")})
    entries = write_bundle(checkpoint.prefix, {**others, **first})
    for name in first:
        for layer in range(1, 50):
            entries[name.replace("cell_0", f"cell_{layer}").encode()] = entries[name.encode()]
    write_index(checkpoint.prefix, entries, per_block=1000)
    with pytest.raises(WeightsError, match="E133"):
        load_tf_checkpoint(checkpoint.options, checkpoint.prefix)


@pytest.mark.parametrize("setting", [None, False])
def test_forward_only_model(checkpoint: Checkpoint, setting: bool | None) -> None:
    """bilm-tf trains one where `bidirectional` is not given."""
    del checkpoint.settings["bidirectional"]
    checkpoint.rename("^lm/RNN_1/.*", "dropped")
    checkpoint.rename("^lm/RNN_0/rnn/", "lm/rnn/")
    checkpoint.variables.pop("dropped")
    checkpoint.assert_refused("E124", "not given")


# The newest checkpoint.


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for step in (90, 1250, 800):
        (tmp_path / f"model.ckpt-{step}.index").touch()
    return tmp_path


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('model_checkpoint_path: "model.ckpt-800"\nall_model_checkpoint_paths: "model.ckpt-90"\n', "model.ckpt-800"),
        ('model_checkpoint_path: "/home/somebody/model.ckpt-90"\n', "model.ckpt-90"),
        ('model_checkpoint_path: "C:\\\\models\\\\model.ckpt-90"\n', "model.ckpt-90"),
        ('model_checkpoint_path: "model.ckpt-7"\n', "model.ckpt-1250"),
        ("\xff\x00", "model.ckpt-1250"),
        (None, "model.ckpt-1250"),
    ],
)
def test_newest_checkpoint(folder: Path, text: str | None, expected: str) -> None:
    if text is not None:
        (folder / "checkpoint").write_text(text, encoding="latin-1")
    assert latest_checkpoint(str(folder)) == folder / expected


def test_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=r"E138.*'\.index'"):
        latest_checkpoint(tmp_path)
