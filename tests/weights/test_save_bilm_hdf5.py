"""The writer of options.json + weights.hdf5: nothing is lost on the way there and back, and no write leaves a mixture."""

from __future__ import annotations

import io
import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from spacy_elmo.errors import WeightsError
from spacy_elmo.lm.bilm import BiLM
from spacy_elmo.lm.config import BiLMConfig
from spacy_elmo.lm.softmax import AdaptiveSoftmax, FullSoftmax
from spacy_elmo.weights.bilm_hdf5 import load_bilm_hdf5, load_softmax_hdf5, save_bilm_hdf5
from spacy_elmo.weights.hdf5_target import Hdf5Target
from spacy_elmo.weights.native import load_bilm, save_bilm
from tests.golden import ATOL, MODELS, read_golden
from tests.weights.hdf5_model import CONFIG, HDF5Model, bilm_tf_options, random_model, read_datasets

h5py = pytest.importorskip("h5py")


class Export:
    """Where a model goes to."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.options, self.weights = folder / "options.json", folder / "weights.hdf5"

    def save(self, bilm: BiLM, **more: Any) -> list[str]:
        return save_bilm_hdf5(bilm, self.options, self.weights, **more)

    def load(self, **more: Any) -> BiLM:
        return load_bilm_hdf5(self.options, self.weights, **more)

    def contents(self) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in self.folder.iterdir()}


@pytest.fixture
def files(tmp_path: Path) -> HDF5Model:
    return HDF5Model(tmp_path / "read")


@pytest.fixture
def export(tmp_path: Path) -> Export:
    return Export(tmp_path / "written")


def assert_datasets_equal(found: Path, expected: Path) -> None:
    theirs, ours = read_datasets(expected), read_datasets(found)
    assert set(ours) == set(theirs)
    for name, values in theirs.items():
        assert ours[name].dtype == values.dtype and ours[name].shape == values.shape, name
        assert ours[name].tobytes() == values.tobytes(), name


# There and back.


@pytest.mark.parametrize("model", MODELS)
def test_golden_file_comes_out_bit_for_bit_by_way_of_the_native_format(
    fixtures_dir: Path, tmp_path: Path, export: Export, model: str
) -> None:
    golden = read_golden(fixtures_dir, model)
    save_bilm(load_bilm_hdf5(golden.options, golden.weights), tmp_path / "native")
    export.save(load_bilm(tmp_path / "native"))
    assert_datasets_equal(export.weights, golden.weights)
    bilm = export.load(initial_state="carry")
    state = None
    for batch, expected in zip(golden.batches, golden.top, strict=True):
        output = bilm(batch, state=state)
        state = output.state
        for layers, top in zip(output.split(), expected, strict=True):
            np.testing.assert_allclose(layers[:, -1].numpy(), top, rtol=0, atol=ATOL)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"activation": "tanh", "n_highway": 0, "cell_clip": None, "projection_clip": 2.5},
        {"projection": 9, "cells": 9, "n_layers": 1, "skip_connections": False},
        {"n_layers": 3},
    ],
    ids=str,
)
def test_variants_come_out_bit_for_bit(tmp_path: Path, export: Export, changes: dict[str, Any]) -> None:
    config = BiLMConfig.from_dict({**CONFIG.to_dict(), **changes})
    files = HDF5Model(tmp_path / "read", config)
    export.save(files.load())
    assert_datasets_equal(export.weights, files.weights)
    assert json.loads(export.options.read_text(encoding="utf8")) == bilm_tf_options(config)


def test_datasets_are_plain(files: HDF5Model, export: Export) -> None:
    export.save(files.load())
    with h5py.File(export.weights) as file:
        cell = file["RNN_1/RNN/MultiRNNCell/Cell1/LSTMCell/W_0"]
        assert cell.dtype == np.dtype("<f4")
        assert cell.chunks is None and cell.compression is None and not cell.attrs


def test_same_model_gives_the_same_bytes(files: HDF5Model, tmp_path: Path) -> None:
    for name in ("one", "two"):
        Export(tmp_path / name).save(files.load())
    assert Export(tmp_path / "one").contents() == Export(tmp_path / "two").contents()


def test_fine_tuned_model_comes_out_as_it_is(files: HDF5Model, export: Export) -> None:
    bilm = files.load().requires_grad_(True)
    optimizer = torch.optim.SGD(bilm.parameters(), lr=0.1)
    bilm([["some", "words"]]).layers.pow(2).sum().backward()
    optimizer.step()
    changed = {name: values.clone() for name, values in bilm.state_dict().items()}
    export.save(bilm)
    state = export.load().state_dict()
    assert all(torch.equal(state[name], values) for name, values in changed.items())
    assert not np.array_equal(changed["encoder.characters"], files.parameters["encoder.characters"])


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_precisions_are_written_as_float32(files: HDF5Model, export: Export, dtype: torch.dtype) -> None:
    bilm = files.load().to(dtype)
    export.save(bilm)
    state = export.load().state_dict()
    assert all(torch.equal(state[name], values.float()) for name, values in bilm.state_dict().items())


def test_softmax_and_its_vocabulary(files: HDF5Model, export: Export) -> None:
    head = FullSoftmax(CONFIG.projection, 3)
    export.save(files.load(), head=head, vocabulary=["<S>", "</S>", "naïve"])
    read = load_softmax_hdf5(export.weights, CONFIG.projection)
    assert read is not None
    assert all(torch.equal(read.state_dict()[name], values) for name, values in head.state_dict().items())
    assert (export.folder / "vocab.txt").read_bytes() == "<S>\n</S>\nnaïve\n".encode()
    export.load()


ALLENNLP = """
import json, sys
import numpy
from contestants.allennlp_elmo import AllenNLPElmo
options, weights, sentences, output = sys.argv[1:]
numpy.save(output, AllenNLPElmo(options, weights).layers(json.loads(sentences)))
"""


@pytest.mark.skipif(
    "SPACY_ELMO_ALLENNLP_PYTHON" not in os.environ,
    reason="set SPACY_ELMO_ALLENNLP_PYTHON to the Python of an environment with AllenNLP 2.10",
)
def test_allennlp_computes_the_same_layers(export: Export) -> None:
    """All layers of a model with both clips in reach, from zero state, which is where AllenNLP starts."""
    config = replace(CONFIG, max_characters=50, initial_state="zero", cell_clip=0.5, projection_clip=0.5)
    bilm = BiLM(config)
    bilm.load_state_dict({name: torch.from_numpy(values) for name, values in random_model(config).items()})
    export.save(bilm)
    sentences = [["The", "cat", "sat", "."], ["naïve", "東京"], ["x" * 60]]
    output = export.folder / "layers.npy"
    python, benchmarks = os.environ["SPACY_ELMO_ALLENNLP_PYTHON"], Path(__file__).resolve().parents[2] / "benchmarks"
    arguments = [str(export.options), str(export.weights), json.dumps(sentences), str(output)]
    environment = {**os.environ, "PYTHONPATH": str(benchmarks)}
    subprocess.run([python, "-c", ALLENNLP, *arguments], env=environment, check=True, timeout=120, capture_output=True)
    np.testing.assert_allclose(bilm(sentences).layers.detach().numpy(), np.load(output), rtol=0, atol=5e-6)


# What is said and what is refused.


def test_what_other_programs_cannot_read_is_said(export: Export) -> None:
    small = {"character_dim": 2, "filters": ((1, 4),), "n_highway": 0}
    assert export.save(BiLM(BiLMConfig(**small, projection=3, cells=4))) == [
        "The initial state 'zero' is not part of the format: give it again when reading."
    ]
    config = BiLMConfig(**small, projection=4, cells=4, skip_connections=False, max_characters=9, n_layers=9)
    _, allennlp, bilm_tf = export.save(BiLM(config))
    assert allennlp == (
        "AllenNLP cannot read this model: it has no skip connections and has no projection of its characters and has no "
        "projection of its LSTMs and reads words of 9 characters and not 50."
    )
    assert bilm_tf == "bilm-tf cannot read this model: it has 9 layers, more than 8."
    _, bilm_tf = export.save(BiLM(BiLMConfig(**small, projection=5, cells=3)))
    assert "has more projections than LSTM cells and has more projections than filters" in bilm_tf


@pytest.mark.parametrize("head", [AdaptiveSoftmax(CONFIG.projection, 9, [4]), FullSoftmax(CONFIG.projection + 1, 9)])
def test_head_that_the_format_cannot_hold(files: HDF5Model, export: Export, head: Any) -> None:
    with pytest.raises(WeightsError, match="E134"):
        export.save(files.load(), head=head)
    assert not export.folder.exists()


@pytest.mark.parametrize("word", ["two\nlines", " space", "!!!MAXTERMID", "\ud800"])
def test_word_that_a_vocabulary_file_cannot_hold(files: HDF5Model, export: Export, word: str) -> None:
    with pytest.raises(WeightsError, match="E141"):
        export.save(files.load(), vocabulary=["<S>", word])


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e300])
def test_weights_that_are_not_finite_are_not_written(files: HDF5Model, export: Export, value: float) -> None:
    bilm = files.load().double()
    export.save(bilm)
    before = export.contents()
    bilm.backward_lm[1].bias[3] = value
    with pytest.raises(WeightsError, match="E136.*RNN_1/RNN/MultiRNNCell/Cell1/LSTMCell/B"):
        export.save(bilm)
    assert export.contents() == before


# Writes that are cut short.


@pytest.fixture
def other() -> BiLM:
    """A model of the same shapes, whose weights fit the options of the first, which would give wrong vectors in silence."""
    bilm = BiLM(replace(CONFIG, skip_connections=False))
    bilm.load_state_dict({name: torch.from_numpy(-values) for name, values in random_model(CONFIG).items()})
    return bilm


@pytest.mark.parametrize("fails_at", range(4))
def test_no_failure_leaves_files_of_two_models(
    files: HDF5Model, export: Export, other: BiLM, monkeypatch: pytest.MonkeyPatch, fails_at: int
) -> None:
    """The three moves: the old options aside, the new weights, the new options; and the write before them."""
    export.save(files.load())
    before = export.contents()
    moves: list[str] = []
    replace_file = os.replace

    def failing_replace(source: Path, target: Path) -> None:
        moves.append(target.name)
        if len(moves) == fails_at:
            raise OSError(28, "No space left on device")
        replace_file(source, target)

    def failing_fsync(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", failing_replace)
    if fails_at == 0:
        monkeypatch.setattr(os, "fsync", failing_fsync)
    with pytest.raises(OSError, match="No space left"):
        export.save(other)
    after = export.contents()
    if fails_at < 3:
        assert after == before
    else:
        assert set(after) == {"weights.hdf5"} and after["weights.hdf5"] != before["weights.hdf5"]


@pytest.mark.parametrize("room", [10, 3000, 10_000])
def test_full_disk_is_an_error_and_not_the_end_of_the_process(
    files: HDF5Model, export: Export, other: BiLM, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    """hdf5 takes it badly if a write fails: it is told nothing of it."""

    class FullDisk(io.FileIO):
        def write(self, data: Any) -> int:
            if self.tell() + len(data) > room:
                raise OSError(28, "No space left on device")
            return super().write(data)

    class Target(Hdf5Target, FullDisk):
        pass

    export.save(files.load())
    before = export.contents()
    monkeypatch.setattr("spacy_elmo.weights.bilm_hdf5.Hdf5Target", Target)
    with pytest.raises(OSError, match="No space left"):
        export.save(other)
    assert export.contents() == before


def test_an_interrupt_while_hdf5_writes_ends_it_in_order(
    files: HDF5Model, export: Export, other: BiLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Interrupted(io.FileIO):
        def write(self, data: Any) -> int:
            raise KeyboardInterrupt

    class Target(Hdf5Target, Interrupted):
        pass

    export.save(files.load())
    before = export.contents()
    monkeypatch.setattr("spacy_elmo.weights.bilm_hdf5.Hdf5Target", Target)
    with pytest.raises(KeyboardInterrupt):
        export.save(other)
    assert export.contents() == before


def test_new_weights_of_the_same_options_are_one_move(
    files: HDF5Model, export: Export, other: BiLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then there is no moment without a model."""
    export.save(files.load())
    seen: list[bool] = []
    replace_file = os.replace

    def watching_replace(source: Path, target: Path) -> None:
        seen.append(export.options.exists() and export.weights.exists())
        replace_file(source, target)

    monkeypatch.setattr(os, "replace", watching_replace)
    other.config = CONFIG
    export.save(other)
    assert seen and all(seen)
    assert torch.equal(export.load().encoder.characters, other.encoder.characters)


@pytest.mark.parametrize("name", ["options.json", "weights.hdf5"])
def test_folder_in_the_way(files: HDF5Model, export: Export, name: str) -> None:
    (export.folder / name).mkdir(parents=True)
    with pytest.raises(OSError):
        export.save(files.load())
    assert [path.name for path in export.folder.iterdir()] == [name]
    assert (export.folder / name).is_dir()
