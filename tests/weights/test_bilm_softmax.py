"""The output head that some hdf5 files hold beside the biLM."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from spacy_elmo.errors import WeightsError
from spacy_elmo.weights.bilm_hdf5 import load_softmax_hdf5
from tests.weights.hdf5_model import CONFIG, HDF5Model

h5py = pytest.importorskip("h5py")


@pytest.fixture
def files(tmp_path: Path) -> HDF5Model:
    return HDF5Model(tmp_path)


def test_softmax_beside_the_bilm_is_read_apart(files: HDF5Model) -> None:
    random = np.random.default_rng(0)
    weight, bias = random.normal(size=(11, 5)).astype("float32"), random.normal(size=11).astype("float32")
    files.replace("softmax/W", weight)
    files.replace("softmax/b", bias)
    files.assert_loads_as(CONFIG)
    head = load_softmax_hdf5(files.weights, CONFIG.projection)
    assert head is not None and head.settings == {"kind": "full", "projection": 5, "n_words": 11}
    hidden, words = torch.tensor(random.normal(size=(4, 5)), dtype=torch.float32), torch.tensor([0, 3, 10, 10])
    logits = hidden.numpy() @ weight.T + bias
    expected = logits[range(4), words] - np.log(np.exp(logits).sum(1))
    np.testing.assert_allclose(head(hidden, words).detach().numpy(), expected, atol=1e-6)


def test_file_without_softmax(files: HDF5Model) -> None:
    assert load_softmax_hdf5(files.weights, CONFIG.projection) is None


@pytest.mark.parametrize(
    ("weight", "bias", "code"),
    [
        (np.zeros((11, 5), "float32"), None, "E128"),
        (None, np.zeros(11, "float32"), "E128"),
        (np.zeros((11, 4), "float32"), np.zeros(11, "float32"), "E129"),
        (np.zeros((10, 5), "float32"), np.zeros(11, "float32"), "E129"),
        (np.zeros((0, 5), "float32"), np.zeros(0, "float32"), "E129"),
        (np.zeros((11, 5), "float32"), np.zeros((11, 1), "float32"), "E129"),
        (np.zeros((11, 5), "float32"), h5py.Empty("float32"), "E130"),
        (np.zeros((11, 5), "int8"), np.zeros(11, "float32"), "E130"),
        (np.full((11, 5), np.nan, "float32"), np.zeros(11, "float32"), "E132"),
    ],
)
def test_softmax_that_is_none(files: HDF5Model, weight: Any, bias: Any, code: str) -> None:
    files.replace("softmax/W", weight)
    files.replace("softmax/b", bias)
    with pytest.raises(WeightsError, match=code):
        load_softmax_hdf5(files.weights, CONFIG.projection)


def test_softmax_that_is_not_stored_is_refused_before_memory_is_taken(files: HDF5Model) -> None:
    with h5py.File(files.weights, "a") as file:
        file.create_dataset("softmax/W", (2**33, 5), "float32", chunks=(1024, 5))
        file.create_dataset("softmax/b", (2**33,), "float32", chunks=(1024,))
    with pytest.raises(WeightsError, match="E133"):
        load_softmax_hdf5(files.weights, 5)
