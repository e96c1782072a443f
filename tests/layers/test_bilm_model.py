from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import spacy
import torch
from spacy import registry
from spacy.language import Language
from spacy.tokens import Doc, Span
from thinc.api import Model

import spacy_elmo  # noqa: F401
from spacy_elmo.errors import ConfigError, PipelineError, WeightsError
from spacy_elmo.layers.bilm_model import bilm_shim, build_bilm_model
from spacy_elmo.layers.shim import FineTuning


def whole_docs(docs: list[Doc]) -> list[list[Span]]:
    return [[doc[:]] for doc in docs]


@pytest.fixture(scope="module")
def nlp() -> Language:
    return spacy.blank("en")


@pytest.fixture
def model(source: Path) -> Model:
    return build_bilm_model(whole_docs, source)


def test_layers_are_those_of_the_bilm(model: Model, nlp: Language):
    docs = [nlp("the bank paid"), nlp("I sat on the bank")]
    expected = bilm_shim(model).bilm([[token.text for token in doc] for doc in docs]).split()
    for layers, reference in zip(model.predict(docs), expected):
        assert layers.dtype == np.float32
        np.testing.assert_allclose(layers, reference.numpy(), atol=1e-6)


def test_dimensions_are_known_before_the_weights_are_loaded(model: Model):
    assert (model.get_dim("nO"), model.get_dim("nL")) == (16, 3)
    assert not bilm_shim(model).is_loaded


def test_docs_without_words_have_no_rows_and_load_no_weights(model: Model, nlp: Language):
    assert [layers.shape for layers in model.predict([nlp(""), nlp(" \n")])] == [(0, 3, 16), (1, 3, 16)]
    assert not bilm_shim(model).is_loaded


def test_empty_batch_gives_nothing(model: Model):
    assert model.predict([]) == []


def test_tokens_in_no_span_have_zeros(source: Path, nlp: Language):
    model = build_bilm_model(lambda docs: [[doc[1:3]] for doc in docs], source)
    layers = model.predict([nlp("a b c d")])[0]
    assert np.abs(layers).sum(axis=(1, 2)).astype(bool).tolist() == [False, True, True, False]


def test_each_array_owns_its_memory(model: Model, nlp: Language):
    first, second = model.predict([nlp("a b"), nlp("c d")])
    assert first.base is None and second.base is None


@pytest.mark.parametrize("words", [1, 2, 5])
def test_batch_budget_changes_no_result(source: Path, model: Model, nlp: Language, words: int):
    docs = [nlp("the bank paid"), nlp("I sat on the bank"), nlp("a")]
    budgeted = build_bilm_model(whole_docs, source, max_batch_words=words)
    for layers, expected in zip(budgeted.predict(docs), model.predict(docs)):
        np.testing.assert_allclose(layers, expected, atol=1e-6)


def test_gradient_of_a_token_is_that_of_the_word_it_has_its_layers_from(source: Path, nlp: Language):
    # Overlapping spans, a token in none, and white space.
    model = build_bilm_model(lambda docs: [[doc[0:3], doc[1:4]] if len(doc) > 2 else [] for doc in docs], source)
    bilm_shim(model).fine_tuning = FineTuning()
    docs = [Doc(nlp.vocab, words=["a", "bank", "\n", "paid", "off"]), nlp(""), Doc(nlp.vocab, words=["no", "span"])]
    layers, backprop = model.begin_update(docs)
    for array, expected in zip(layers, model.predict(docs)):
        np.testing.assert_allclose(array, expected, atol=1e-6)
    direction = [
        np.random.default_rng(n).standard_normal(array.shape).astype(np.float32) for n, array in enumerate(layers)
    ]
    assert backprop(direction) == []
    weight = dict(bilm_shim(model).bilm.named_parameters())["forward_lm.1.bias"]
    gradient = weight.grad.clone()

    def loss() -> float:
        return sum(float((d * x).astype(np.float64).sum()) for d, x in zip(direction, model.predict(docs)))

    for index in (0, 17, 40):
        values = []
        for step in (1e-2, -1e-2):
            with torch.no_grad():
                weight[index] += step
                values.append(loss())
                weight[index] -= step
        assert float(gradient[index]) == pytest.approx((values[0] - values[1]) / 2e-2, abs=1e-3)


def test_training_on_docs_without_words_is_no_error(source: Path, nlp: Language):
    model = build_bilm_model(whole_docs, source)
    bilm_shim(model).fine_tuning = FineTuning()
    layers, backprop = model.begin_update([nlp(""), nlp(" ")])
    assert [array.shape for array in layers] == [(0, 3, 16), (1, 3, 16)]
    assert backprop(layers) == []


def test_update_runs_and_has_no_gradient(model: Model, nlp: Language):
    layers, backprop = model.begin_update([nlp("a b")])
    assert layers[0].shape == (2, 3, 16)
    assert backprop(layers) == []
    model.finish_update(lambda *args, **kwargs: pytest.fail("a frozen model has nothing to update"))


def test_bytes_bring_the_weights_where_the_source_is_gone(model: Model, nlp: Language, tmp_path: Path):
    loaded = build_bilm_model(whole_docs, tmp_path / "gone")
    assert not loaded.has_dim("nO")
    loaded.from_bytes(model.to_bytes())
    assert loaded.get_dim("nO") == 16
    np.testing.assert_array_equal(loaded.predict([nlp("a b")])[0], model.predict([nlp("a b")])[0])


def test_copy_predicts_the_same(model: Model, nlp: Language):
    np.testing.assert_array_equal(model.copy().predict([nlp("a b")])[0], model.predict([nlp("a b")])[0])


def test_missing_weights_are_a_coded_error_when_needed(nlp: Language, tmp_path: Path):
    model = build_bilm_model(whole_docs, tmp_path / "gone")
    with pytest.raises(WeightsError, match="E170"):
        model.predict([nlp("a")])


def test_span_getter_must_answer_for_every_doc(source: Path, nlp: Language):
    model = build_bilm_model(lambda docs: [], source)
    with pytest.raises(PipelineError, match="E308"):
        model.predict([nlp("a")])


@pytest.mark.parametrize(
    "settings",
    [
        {"max_batch_words": 0},
        {"dtype": "bfloat16"},
        {"dtype": "int8"},
        {"initial_state": "carry"},
        {"initial_state": "x"},
    ],
)
def test_impossible_settings_are_refused_by_name(settings: dict[str, Any]):
    with pytest.raises(ConfigError, match=f"E300.*{next(iter(settings))}"):
        build_bilm_model(whole_docs, **settings)


def test_architecture_is_registered(source: Path):
    config = {
        "@architectures": "spacy_elmo.BiLM.v1",
        "source": str(source),
        "get_spans": {"@misc": "spacy_elmo.doc_spans.v1"},
    }
    model = registry.resolve({"model": config})["model"]
    assert model.get_dim("nO") == 16
