from __future__ import annotations

import copy
import pickle
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from thinc.shims.shim import Shim

from spacy_elmo.errors import WeightsError
from spacy_elmo.layers.shim import BiLMShim
from spacy_elmo.weights import native

SENTENCES = ([["the", "bank", "paid"], ["a"]], 100)


@pytest.fixture
def shim(source: Path) -> BiLMShim:
    return BiLMShim(source)


def vectors(shim: BiLMShim) -> np.ndarray:
    return shim.predict(SENTENCES).numpy()


def test_weights_are_loaded_at_first_use_not_before(shim: BiLMShim):
    assert not shim.is_loaded
    assert shim.predict(SENTENCES).shape == (4, 3, 16)
    assert shim.is_loaded


def test_config_is_known_without_loading(shim: BiLMShim):
    config = shim.peek_config()
    assert config is not None and config.width == 16
    assert not shim.is_loaded


def test_threads_load_the_weights_once(shim: BiLMShim, monkeypatch: pytest.MonkeyPatch):
    loads = []
    load = native.load_bilm

    def counted(directory: Path) -> object:
        loads.append(directory)
        return load(directory)

    monkeypatch.setattr(native, "load_bilm", counted)
    threads = [threading.Thread(target=vectors, args=(shim,)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(loads) == 1


def test_weights_loaded_in_inference_mode_are_ordinary_ones(shim: BiLMShim):
    with torch.inference_mode():
        parameters = list(shim.bilm.parameters())
    assert not any(parameter.is_inference() for parameter in parameters)


def test_missing_source_is_no_error_until_weights_are_needed(tmp_path: Path):
    shim = BiLMShim(tmp_path / "gone")
    assert shim.peek_config() is None
    with pytest.raises(WeightsError, match="E302.*gone"):
        vectors(shim)


def test_bytes_keep_the_weights(shim: BiLMShim, tmp_path: Path):
    loaded = BiLMShim(tmp_path / "gone").from_bytes(shim.to_bytes())
    np.testing.assert_array_equal(vectors(loaded), vectors(shim))


def test_bytes_are_safetensors_not_pickle(shim: BiLMShim):
    data = shim.to_bytes()
    header = int.from_bytes(data[:8], "little")
    assert b"forward_lm.0.input_weight" in data[8 : 8 + header]


def test_broken_bytes_are_a_coded_error(shim: BiLMShim):
    with pytest.raises(WeightsError, match="ELMO-E1"):
        BiLMShim().from_bytes(b"no weights")


@pytest.mark.parametrize(
    "make", [lambda shim: shim.copy(), copy.deepcopy, lambda shim: pickle.loads(pickle.dumps(shim))]
)
def test_copies_have_their_own_id_and_weights(shim: BiLMShim, make):
    expected = vectors(shim)
    copied: BiLMShim = make(shim)
    assert copied.id != shim.id
    with torch.no_grad():
        for parameter in shim.bilm.parameters():
            parameter.zero_()
    np.testing.assert_array_equal(vectors(copied), expected)


def test_ids_are_drawn_from_thincs_counter(shim: BiLMShim):
    before = Shim.global_id
    assert shim.copy().id == before + 1


def test_pickle_of_a_shim_not_loaded_yet_holds_no_weights(shim: BiLMShim):
    assert len(pickle.dumps(shim)) < 1000
    assert vectors(pickle.loads(pickle.dumps(shim))).shape == (4, 3, 16)


def test_prediction_leaves_the_mode_alone_and_needs_no_graph(shim: BiLMShim):
    shim.bilm.train()
    layers = shim.predict(SENTENCES)
    assert shim.bilm.training
    assert not layers.requires_grad


def test_initial_state_of_the_config_is_replaced_on_every_way_to_the_weights(source: Path):
    shim = BiLMShim(source, "canonical")
    assert shim.bilm.config.initial_state == "canonical"
    assert BiLMShim(None, "canonical").from_bytes(BiLMShim(source).to_bytes()).bilm.config.initial_state == "canonical"
    assert not np.allclose(vectors(shim), vectors(BiLMShim(source)))


def test_moving_before_loading_is_remembered(shim: BiLMShim):
    shim.to_device("cpu", -1)
    assert next(shim.bilm.parameters()).device.type == "cpu"


def test_training_calls_change_nothing(shim: BiLMShim):
    expected = vectors(shim)
    _, backprop = shim(SENTENCES, is_train=True)
    assert backprop(np.ones(3)) == []
    shim.finish_update(None)
    with shim.use_params({(shim.id, "encoder.characters"): np.zeros(1)}):
        np.testing.assert_array_equal(vectors(shim), expected)
