from __future__ import annotations

import copy
import pickle
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from thinc.api import Adam
from thinc.shims.shim import Shim

from spacy_elmo.errors import WeightsError
from spacy_elmo.layers.shim import BiLMShim, FineTuning, layer_of
from spacy_elmo.weights import formats, native

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
    load = formats.load_model

    def counted(directory: Path) -> object:
        loads.append(directory)
        return load(directory)

    monkeypatch.setattr(formats, "load_model", counted)
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
    with pytest.raises(WeightsError, match="E170.*gone"):
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


def test_training_calls_change_nothing_that_is_frozen(shim: BiLMShim):
    expected = vectors(shim)
    _, backprop = shim(SENTENCES, is_train=True)
    assert backprop(np.ones(3)) == []
    shim.finish_update(None)
    with shim.use_params({(shim.id, "encoder.characters"): np.zeros(1)}):
        np.testing.assert_array_equal(vectors(shim), expected)


@pytest.fixture
def trained(source: Path) -> BiLMShim:
    shim = BiLMShim(source)
    shim.fine_tuning = FineTuning()
    return shim


def gradients(shim: BiLMShim) -> dict[str, np.ndarray]:
    return {name: p.grad.numpy().copy() for name, p in shim.bilm.named_parameters() if p.grad is not None}


def test_gradients_are_those_of_torch(trained: BiLMShim, source: Path):
    layers, backprop = trained.begin_update(SENTENCES)
    assert not layers.requires_grad
    direction = np.random.default_rng(0).standard_normal(layers.shape).astype(np.float32)
    backprop(direction)
    bilm = native.load_bilm(source).requires_grad_(True)
    bilm(SENTENCES[0]).layers.backward(torch.from_numpy(direction))
    expected = {name: p.grad.numpy() for name, p in bilm.named_parameters()}
    assert gradients(trained).keys() == expected.keys()
    for name, gradient in gradients(trained).items():
        np.testing.assert_allclose(gradient, expected[name], atol=1e-5)


def test_layers_below_the_lowest_that_is_trained_have_no_gradient(trained: BiLMShim):
    trained.lowest_trained = 2
    layers, backprop = trained.begin_update(SENTENCES)
    backprop(np.ones(layers.shape, dtype=np.float32))
    assert {layer_of(name) for name in gradients(trained)} == {2}


def test_nothing_is_trained_above_the_top(trained: BiLMShim):
    trained.lowest_trained = 3
    layers, backprop = trained.begin_update(SENTENCES)
    backprop(np.ones(layers.shape, dtype=np.float32))
    assert gradients(trained) == {}
    trained.finish_update(Adam())


def test_training_leaves_the_mode_alone(trained: BiLMShim):
    trained.begin_update(SENTENCES)
    assert not trained.bilm.training


def test_training_works_in_inference_mode_of_the_caller(trained: BiLMShim):
    with torch.inference_mode():
        layers, backprop = trained.begin_update(SENTENCES)
    backprop(np.ones(layers.shape, dtype=np.float32))
    assert gradients(trained)


def test_a_step_takes_the_gradient_away(trained: BiLMShim):
    layers, backprop = trained.begin_update(SENTENCES)
    backprop(np.ones(layers.shape, dtype=np.float32))
    before = vectors(trained)
    trained.finish_update(Adam(0.1))
    after = vectors(trained)
    assert gradients(trained) == {} and not np.allclose(after, before)
    trained.finish_update(Adam(0.1))
    np.testing.assert_array_equal(vectors(trained), after)


def test_two_copies_have_moments_of_their_own(trained: BiLMShim):
    optimizer = Adam(0.1)
    for shim in (trained, trained.copy()):
        layers, backprop = shim.begin_update(SENTENCES)
        backprop(np.ones(layers.shape, dtype=np.float32))
        shim.finish_update(optimizer)
    assert set(optimizer.nr_update.values()) == {1}


@pytest.mark.parametrize(
    "make", [lambda shim: shim.copy(), copy.deepcopy, lambda shim: pickle.loads(pickle.dumps(shim))]
)
def test_copies_are_trained_in_the_same_way(trained: BiLMShim, make):
    trained.fine_tuning, trained.lowest_trained = FineTuning([0.1, 1.0, 1.0], 2.0), 1
    copied: BiLMShim = make(trained)
    assert (copied.fine_tuning, copied.lowest_trained) == (trained.fine_tuning, 1)


def test_averages_come_under_the_names_that_the_optimizer_uses_and_go_again(trained: BiLMShim):
    before = vectors(trained)
    zeros = {(trained.id, name): np.zeros(p.shape, dtype=np.float32) for name, p in trained.bilm.named_parameters()}
    with pytest.raises(KeyError), trained.use_params(zeros):
        assert not vectors(trained).any()
        raise KeyError
    np.testing.assert_array_equal(vectors(trained), before)


def test_averages_of_others_are_not_taken(trained: BiLMShim):
    before = vectors(trained)
    with trained.use_params({(trained.id + 1, "encoder.characters"): np.zeros(1)}):
        np.testing.assert_array_equal(vectors(trained), before)


def test_bfloat16_is_left_alone_where_there_is_no_gpu(trained: BiLMShim):
    expected, _ = trained.begin_update(SENTENCES)
    trained.fine_tuning = FineTuning(bfloat16=True)
    layers, _ = trained.begin_update(SENTENCES)
    assert torch.equal(layers, expected)


def test_fingerprint_names_the_weights_as_they_are_now(trained: BiLMShim, source: Path):
    first = trained.fingerprint()
    assert first == trained.fingerprint() == BiLMShim(source).fingerprint()
    layers, backprop = trained.begin_update(SENTENCES)
    backprop(np.ones(layers.shape, dtype=np.float32))
    trained.finish_update(Adam(0.1))
    assert trained.fingerprint() not in (first, BiLMShim(source, "canonical").fingerprint())
    trained.bilm = native.load_bilm(source)
    assert trained.fingerprint() == first
