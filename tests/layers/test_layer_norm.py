from __future__ import annotations

import numpy as np
import pytest

from spacy_elmo.layers.layer_norm import normalize


def random_layers(*lengths: int) -> list[np.ndarray]:
    generator = np.random.default_rng(0)
    return [(3 + 2 * generator.standard_normal((n, 3, 8))).astype(np.float32) for n in lengths]


def test_each_layer_of_each_token_is_normalized():
    normal, _ = normalize(np, random_layers(4, 0, 2), "token")
    assert [len(each) for each in normal] == [4, 0, 2]
    for each in (normal[0], normal[2]):
        np.testing.assert_allclose(each.mean(axis=2), 0, atol=1e-5)
        np.testing.assert_allclose(each.var(axis=2), 1, atol=1e-4)


def test_each_layer_of_a_batch_is_normalized_as_in_the_original():
    layers = random_layers(4, 0, 2)
    normal, _ = normalize(np, layers, "batch")
    joined = np.concatenate(layers)
    for layer in range(3):
        values = joined[:, layer]
        expected = (values - values.mean()) / np.sqrt(values.var() + 1e-12)
        np.testing.assert_allclose(np.concatenate(normal)[:, layer], expected, atol=1e-5)


@pytest.mark.parametrize("kind", ["token", "batch"])
def test_rows_of_no_words_stay_zeros_and_do_not_count(kind: str):
    layers = random_layers(4)
    with_space = [np.insert(layers[0], 2, 0, axis=0)]
    normal, backprop = normalize(np, with_space, kind)
    np.testing.assert_allclose(np.delete(normal[0], 2, axis=0), normalize(np, layers, kind)[0][0], atol=1e-6)
    assert not normal[0][2].any()
    assert not backprop([np.ones_like(normal[0])])[0][2].any()


@pytest.mark.parametrize("kind", ["token", "batch"])
def test_batches_without_words_are_left_as_they_are(kind: str):
    normal, backprop = normalize(np, random_layers(0, 0), kind)
    assert [each.shape for each in normal] == [(0, 3, 8)] * 2
    assert [each.shape for each in backprop(normal)] == [(0, 3, 8)] * 2


def test_token_norm_does_not_depend_on_the_batch():
    layers = random_layers(4, 3)
    together, _ = normalize(np, layers, "token")
    np.testing.assert_array_equal(normalize(np, layers[1:], "token")[0][0], together[1])


def test_nothing_is_done_unless_asked():
    layers = random_layers(4)
    normal, backprop = normalize(np, layers, "none")
    assert normal is layers and backprop(layers) is layers
