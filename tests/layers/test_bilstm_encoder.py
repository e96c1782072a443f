from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from thinc.api import Adam, Model, set_dropout_rate

from spacy_elmo.errors import ConfigError
from spacy_elmo.layers.bilstm_encoder import build_bilstm_encoder

WIDTH = 6


def sequences(*lengths: int) -> list[np.ndarray]:
    generator = np.random.default_rng(0)
    return [generator.standard_normal((n, WIDTH)).astype(np.float32) for n in lengths]


@pytest.fixture
def encoder() -> Model:
    return build_bilstm_encoder(WIDTH, depth=2).initialize()


def test_it_is_the_lstm_of_torch(encoder: Model):
    lstm = encoder.layers[0]
    reference = torch.nn.LSTM(WIDTH, WIDTH // 2, num_layers=2, bidirectional=True)
    for (_, parameter), name in zip(reference.named_parameters(), lstm.param_names):
        parameter.data = torch.from_numpy(lstm.get_param(name).copy())
    for sequence, encoded in zip(X := sequences(4, 1, 7), encoder.predict(X)):
        np.testing.assert_allclose(encoded, reference(torch.from_numpy(sequence))[0].detach(), atol=1e-6)


def test_a_sequence_is_encoded_alike_in_any_company(encoder: Model):
    X = sequences(4, 0, 1, 7)
    for sequence, encoded in zip(X, encoder.predict(X)):
        np.testing.assert_allclose(encoder.predict([sequence])[0], encoded, atol=1e-6)


@pytest.mark.parametrize("lengths", [(), (0,), (0, 0)])
def test_nothing_to_encode(encoder: Model, lengths: tuple[int, ...]):
    encoded, backprop = encoder.begin_update(sequences(*lengths))
    assert [array.shape for array in encoded] == [(0, WIDTH)] * len(lengths)
    assert [array.shape for array in backprop(encoded)] == [(0, WIDTH)] * len(lengths)


def test_gradient_of_the_input_is_that_of_finite_differences(encoder: Model):
    X = sequences(3, 0, 2)
    encoded, backprop = encoder.begin_update(X)
    direction = [np.cos(np.arange(array.size, dtype=np.float32)).reshape(array.shape) for array in encoded]
    gradient = backprop(direction)
    step = 1e-2 / np.linalg.norm(gradient[0])
    values = []
    for sign in (1, -1):
        moved = [X[0] + sign * step * gradient[0], *X[1:]]
        values.append(sum((array * d).sum() for array, d in zip(encoder.predict(moved), direction)))
    np.testing.assert_allclose((values[0] - values[1]) / (2 * step), (gradient[0] ** 2).sum(), rtol=1e-2)


def test_backpropagation_is_that_of_the_weights_of_its_forward_pass(encoder: Model):
    X, optimizer = sequences(3), Adam(0.1)
    first, backprop = encoder.begin_update(X)
    expected = backprop([np.ones_like(array) for array in first])[0]
    second, backprop = encoder.begin_update(X)
    encoder.finish_update(optimizer)
    np.testing.assert_array_equal(backprop([np.ones_like(array) for array in second])[0], expected)


def test_averages_of_the_optimizer_are_used(encoder: Model):
    X, optimizer = sequences(3), Adam(0.1, use_averages=True)
    for _ in range(3):
        encoded, backprop = encoder.begin_update(X)
        backprop([np.ones_like(array) for array in encoded])
        encoder.finish_update(optimizer)
    last = encoder.predict(X)[0]
    with encoder.use_params(optimizer.averages):
        assert not np.allclose(encoder.predict(X)[0], last, atol=1e-3)


@pytest.mark.parametrize("where", ["between", "after"])
def test_dropout_is_of_training_only(where: str):
    encoder = build_bilstm_encoder(WIDTH, depth=2, dropout=0.5 if where == "between" else 0.0).initialize()
    if where == "after":
        set_dropout_rate(encoder, 0.5)
    X = sequences(9)
    assert not np.allclose(encoder.begin_update(X)[0][0], encoder.predict(X)[0])
    np.testing.assert_array_equal(encoder.predict(X)[0], encoder.predict(X)[0])


def test_weights_survive_serialization(encoder: Model):
    again = build_bilstm_encoder(WIDTH, depth=2).from_bytes(encoder.to_bytes())
    np.testing.assert_array_equal(again.predict(sequences(3))[0], encoder.predict(sequences(3))[0])


@pytest.mark.parametrize("setting", [{"width": 5}, {"width": 0}, {"depth": 0}, {"dropout": 1.0}])
def test_settings_that_cannot_be(setting: dict[str, Any]):
    with pytest.raises(ConfigError, match=r"E300.*BiLSTMEncoder"):
        build_bilstm_encoder(**{"width": WIDTH, **setting})
