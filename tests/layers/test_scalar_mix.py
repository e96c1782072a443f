from __future__ import annotations

import numpy as np
import pytest
from thinc.api import Adam

from spacy_elmo.errors import ConfigError
from spacy_elmo.layers.scalar_mix import build_scalar_mix, layer_shares


def random_layers(*lengths: int, n_layers: int = 3, width: int = 5) -> list[np.ndarray]:
    generator = np.random.default_rng(0)
    return [generator.standard_normal((n, n_layers, width)).astype(np.float32) for n in lengths]


def test_untrained_mix_is_the_mean_of_the_layers():
    layers = random_layers(4, 2)
    mixed = build_scalar_mix().initialize(X=layers).predict(layers)
    for mix, sequence in zip(mixed, layers):
        np.testing.assert_allclose(mix, sequence.mean(axis=1), atol=1e-6)


def test_mix_is_gamma_times_the_softmax_weighted_sum():
    layers = random_layers(4)
    model = build_scalar_mix(gamma=2.5).initialize(X=layers)
    weights = np.asarray([0.5, -1.0, 2.0], dtype=np.float32)
    model.set_param("W", weights)
    s = np.exp(weights) / np.exp(weights).sum()
    np.testing.assert_allclose(model.predict(layers)[0], 2.5 * np.einsum("tld,l->td", layers[0], s), atol=1e-5)


def test_long_sequences_are_mixed_in_parts_without_a_seam():
    layers = random_layers(2500)
    mixed = build_scalar_mix([1, 2, 1]).predict(layers)[0]
    np.testing.assert_allclose(mixed, np.einsum("tld,l->td", layers[0], [0.25, 0.5, 0.25]), atol=1e-6)


def test_given_shares_are_divided_by_their_sum():
    np.testing.assert_allclose(layer_shares(build_scalar_mix([1, 3, 0])), [0.25, 0.75, 0.0], atol=1e-6)


def test_a_single_layer_comes_out_unchanged():
    layers = random_layers(4)
    np.testing.assert_array_equal(build_scalar_mix([0, 1, 0]).predict(layers)[0], layers[0][:, 1])


@pytest.mark.parametrize("shares", [[], [0, 0, 0], [1, -1, 2], [1, float("nan"), 1], [1, float("inf"), 1]])
def test_impossible_shares_are_refused(shares: list[float]):
    with pytest.raises(ConfigError, match="E300.*layer_weights"):
        build_scalar_mix(shares)


def test_empty_sequences_and_batches_are_mixed():
    model = build_scalar_mix([1, 1, 1])
    assert model.predict([]) == []
    assert model.predict(random_layers(0))[0].shape == (0, 5)


def test_another_number_of_layers_is_an_error():
    with pytest.raises(ConfigError, match="E310"):
        build_scalar_mix([1, 1]).predict(random_layers(4))


@pytest.mark.parametrize("name", ["W", "gamma"])
def test_gradient_of_a_parameter_is_that_of_finite_differences(name: str):
    layers = random_layers(4, 3)
    model = build_scalar_mix([0.2, 0.5, 0.3], gamma=1.5)
    d_mixed = [np.random.default_rng(n).standard_normal((len(x), 5)).astype(np.float32) for n, x in enumerate(layers)]
    _, backprop = model.begin_update(layers)
    backprop(d_mixed)
    gradient = model.get_grad(name)

    def loss(value: np.ndarray) -> float:
        model.set_param(name, value.astype(np.float32))
        return sum(float((d * y).astype(np.float64).sum()) for d, y in zip(d_mixed, model.predict(layers)))

    start = model.get_param(name).astype(np.float64)
    for index in range(len(start)):
        step = np.eye(len(start))[index] * 1e-2
        numeric = (loss(start + step) - loss(start - step)) / 2e-2
        assert gradient[index] == pytest.approx(numeric, abs=5e-3, rel=5e-3)


def test_gradient_of_the_layers_is_that_of_finite_differences():
    layers = random_layers(2)
    model = build_scalar_mix([0.2, 0.5, 0.3], gamma=1.5)
    d_mixed = [np.ones((2, 5), dtype=np.float32)]
    d_layers = model.begin_update(layers)[1](d_mixed)[0]
    shifted = [layers[0].copy()]
    shifted[0][1, 2, 3] += 0.5
    numeric = (model.predict(shifted)[0].sum() - model.predict(layers)[0].sum()) / 0.5
    assert d_layers.shape == layers[0].shape
    assert d_layers[1, 2, 3] == pytest.approx(numeric, rel=1e-3)


def test_trainable_mix_learns_the_better_layer():
    layers = random_layers(20)
    model = build_scalar_mix().initialize(X=layers)
    optimizer = Adam(0.1)
    for _ in range(60):
        mixed, backprop = model.begin_update(layers)
        backprop([mixed[0] - layers[0][:, 2]])
        model.finish_update(optimizer)
    assert layer_shares(model).argmax() == 2
    assert layer_shares(model)[2] > 0.8


def test_fixed_mix_has_no_gradient_of_its_own_but_hands_the_layers_theirs():
    layers = random_layers(4)
    model = build_scalar_mix([1, 1, 2], trainable=False)
    mixed, backprop = model.begin_update(layers)
    d_layers = backprop(mixed)
    assert not model.has_grad("W") and not model.has_grad("gamma")
    np.testing.assert_allclose(d_layers[0][:, 2], mixed[0] * 0.5, atol=1e-6)


def test_bytes_keep_the_mix():
    layers = random_layers(4)
    model = build_scalar_mix([1, 0, 3], gamma=0.5)
    loaded = build_scalar_mix().from_bytes(model.to_bytes())
    np.testing.assert_array_equal(loaded.predict(layers)[0], model.predict(layers)[0])
