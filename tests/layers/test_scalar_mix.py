from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from thinc.api import Adam

from spacy_elmo.errors import ConfigError
from spacy_elmo.layers.layer_norm import LAYER_NORMS
from spacy_elmo.layers.scalar_mix import build_scalar_mix, layer_shares


def random_layers(*lengths: int, n_layers: int = 3, width: int = 5) -> list[np.ndarray]:
    generator = np.random.default_rng(0)
    return [generator.standard_normal((n, n_layers, width)).astype(np.float32) for n in lengths]


def random_vectors(*lengths: int, width: int = 5) -> list[np.ndarray]:
    generator = np.random.default_rng(1)
    return [generator.standard_normal((n, width)).astype(np.float32) for n in lengths]


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


@pytest.mark.parametrize("settings", [{}, {"layer_norm": "token"}, {"layer_norm": "batch"}, {"l2": 0.3}], ids=str)
@pytest.mark.parametrize("name", ["W", "gamma"])
def test_gradient_of_a_parameter_is_that_of_finite_differences(name: str, settings: dict[str, Any]):
    layers = random_layers(4, 0, 3)
    model = build_scalar_mix([0.2, 0.5, 0.3], gamma=1.5, **settings)
    d_mixed = random_vectors(4, 0, 3)
    _, backprop = model.begin_update(layers)
    backprop(d_mixed)
    gradient = model.get_grad(name)

    def loss(value: np.ndarray) -> float:
        model.set_param(name, value.astype(np.float32))
        pull = settings.get("l2", 0.0) * float((model.get_param("W") ** 2).sum())
        return pull + sum(float((d * y).astype(np.float64).sum()) for d, y in zip(d_mixed, model.predict(layers)))

    start = model.get_param(name).astype(np.float64)
    for index in range(len(start)):
        step = np.eye(len(start))[index] * 1e-2
        numeric = (loss(start + step) - loss(start - step)) / 2e-2
        assert gradient[index] == pytest.approx(numeric, abs=5e-3, rel=5e-3)


@pytest.mark.parametrize("layer_norm", LAYER_NORMS)
def test_gradient_of_the_layers_is_that_of_finite_differences(layer_norm: str):
    layers = random_layers(2, 0, 3)
    layers[2][1] = 0  # a token that is no word
    model = build_scalar_mix([0.2, 0.5, 0.3], gamma=1.5, layer_norm=layer_norm)
    d_mixed = random_vectors(2, 0, 3)
    d_layers = model.begin_update(layers)[1](d_mixed)
    assert [d.shape for d in d_layers] == [x.shape for x in layers]

    def loss(step: float, at: tuple[int, ...]) -> float:
        shifted = [x.copy() for x in layers]
        shifted[2][at] += step
        return sum(float((d * y).astype(np.float64).sum()) for d, y in zip(d_mixed, model.predict(shifted)))

    for at in [(0, 0, 0), (0, 1, 4), (2, 2, 3)]:
        numeric = (loss(1e-2, at) - loss(-1e-2, at)) / 2e-2
        assert d_layers[2][at] == pytest.approx(numeric, abs=5e-3, rel=5e-3)


def test_layer_dropout_leaves_layers_out_in_updates_only():
    layers = random_layers(2)
    model = build_scalar_mix([0.2, 0.5, 0.3], layer_dropout=0.5)
    np.random.seed(0)
    shares = []
    for _ in range(200):
        _, backprop = model.begin_update(layers)
        (d_layers,) = backprop([np.ones((2, 5), dtype=np.float32)])
        shares.append(d_layers[0, :, 0])
    np.testing.assert_allclose(np.sum(shares, axis=1), 1.0, atol=1e-5)
    left_out = np.mean(np.stack(shares) == 0, axis=0)
    assert (left_out > 0.3).all() and (left_out < 0.6).all()
    np.testing.assert_allclose(model.predict(layers)[0], np.einsum("tld,l->td", layers[0], [0.2, 0.5, 0.3]), atol=1e-6)


def test_layer_that_is_left_out_has_no_gradient_of_its_weight():
    layers = random_layers(2)
    model = build_scalar_mix([0.2, 0.5, 0.3], layer_dropout=0.5)
    np.random.seed(0)
    for _ in range(10):
        _, backprop = model.begin_update(layers)
        (d_layers,) = backprop(random_vectors(2))
        gradient = model.get_grad("W")
        assert (gradient[np.abs(d_layers).max(axis=(0, 2)) == 0] == 0).all()
        gradient[:] = 0


def test_one_layer_alone_learns_its_factor_only():
    layers = random_layers(3, 0)
    model = build_scalar_mix(layer=1, gamma=2.0, l2=0.1, layer_dropout=0.5).initialize(X=layers)
    mixed, backprop = model.begin_update(layers)
    np.testing.assert_allclose(mixed[0], 2 * layers[0][:, 1], atol=1e-6)
    backprop(mixed)
    assert model.has_grad("gamma") and not model.has_grad("W")
    np.testing.assert_allclose(layer_shares(model), [0, 1, 0])


def test_layer_that_is_not_there_is_refused():
    with pytest.raises(ConfigError, match="E300.*layer.*0 to 2"):
        build_scalar_mix(layer=3).initialize(X=random_layers(3))


@pytest.mark.parametrize(
    "settings",
    [{"layer": -1}, {"layer": 0, "layer_weights": [1, 1]}, {"layer_norm": "x"}, {"layer_dropout": 1.0}, {"l2": -0.1}],
    ids=str,
)
def test_impossible_settings_are_refused_by_name(settings: dict[str, Any]):
    with pytest.raises(ConfigError, match=f"E300.*{next(iter(settings))}"):
        build_scalar_mix(**settings)


def test_pull_brings_the_mix_back_to_the_average():
    layers = random_layers(2)
    model = build_scalar_mix([0.1, 0.1, 0.8], l2=0.1)
    optimizer = Adam(0.05)
    for _ in range(200):
        mixed, backprop = model.begin_update(layers)
        backprop([np.zeros_like(mixed[0])])
        model.finish_update(optimizer)
    np.testing.assert_allclose(layer_shares(model), 1 / 3, atol=1e-2)


def test_layer_of_share_zero_stays_out_with_weight_decay():
    layers = random_layers(2)
    model = build_scalar_mix([0, 1, 1], l2=0.1)
    optimizer = Adam(0.05, L2=0.01)
    for _ in range(20):
        mixed, backprop = model.begin_update(layers)
        backprop(mixed)
        model.finish_update(optimizer)
    assert layer_shares(model)[0] == 0 and np.isfinite(layer_shares(model)).all()


def test_settings_are_those_of_the_config_not_of_what_was_saved():
    layers = random_layers(4)
    saved = build_scalar_mix([1, 2, 3], layer_norm="token").to_bytes()
    plain = build_scalar_mix([1, 2, 3])
    np.testing.assert_array_equal(build_scalar_mix().from_bytes(saved).predict(layers)[0], plain.predict(layers)[0])


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
