"""Networks with ELMo at their input, at their output, or both. What stands for ELMo is a layer that learns one factor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import spacy
from spacy.tokens import Doc
from spacy.util import registry
from spacy.vocab import Vocab
from thinc.api import Model, fix_random_seed

from spacy_elmo.errors import ConfigError
from spacy_elmo.layers.tok2vec import build_elmo_tok2vec, build_static_vectors

WIDTH, ELMO_WIDTH = 6, 5
TEXTS = ["", "the bank paid", "a", "", "she sat on the bank"]

ENCODERS: dict[str, dict[str, Any]] = {
    "spacy.MaxoutWindowEncoder.v2": {"depth": 2, "window_size": 1, "maxout_pieces": 2},
    "spacy.TorchBiLSTMEncoder.v1": {"depth": 1, "dropout": 0.0},
    "spacy_elmo.BiLSTMEncoder.v1": {"depth": 2, "dropout": 0.0},
}
PLACES = {"input": (True, False), "output": (False, True), "both": (True, True)}

by_place = pytest.mark.parametrize("place", PLACES)
by_encoder = pytest.mark.parametrize("encoder", ENCODERS)


def embedding(width: int = WIDTH, vectors: bool = False) -> Model:
    build = registry.get("architectures", "spacy.MultiHashEmbed.v2")
    return build(width=width, attrs=["NORM", "SHAPE"], rows=[40, 20], include_static_vectors=vectors)


def encoding(name: str = "spacy.MaxoutWindowEncoder.v2") -> Model:
    return registry.get("architectures", name)(width=WIDTH, **ENCODERS[name])


def elmo(factor: float = 1.0, width: int = ELMO_WIDTH) -> Model:
    """Like a listener: of a width that is known when it runs, at its place in each Doc a vector of the word."""
    model: Model = Model("elmo", _forward_elmo, params={"factor": None}, attrs={"width": width})
    model.set_param("factor", np.asarray([factor], dtype=np.float32))
    return model


def _forward_elmo(model: Model, docs: list[Doc], is_train: bool) -> tuple[list[np.ndarray], Callable]:
    powers = np.arange(1, model.attrs["width"] + 1)
    words = [np.asarray([token.orth % 1000 for token in doc], dtype=np.float64).reshape(-1, 1) for doc in docs]
    vectors = [np.sin(word * powers).astype(np.float32) for word in words]
    factor = model.get_param("factor")

    def backprop(d_vectors: list[np.ndarray]) -> None:
        model.inc_grad("factor", np.asarray([sum((d * v).sum() for d, v in zip(d_vectors, vectors))], dtype=np.float32))

    return [factor * vector for vector in vectors], backprop


def network(place: str = "input", encoder: str = "spacy.MaxoutWindowEncoder.v2", vectors: bool = False) -> Model:
    at_input, at_output = PLACES[place]
    inputs, outputs = elmo() if at_input else None, elmo() if at_output else None
    return build_elmo_tok2vec(embedding(vectors=vectors), encoding(encoder), inputs, outputs)


def docs_of(texts: list[str], vocab: Vocab | None = None) -> list[Doc]:
    vocab = Vocab() if vocab is None else vocab
    return [Doc(vocab, words=text.split()) for text in texts]


@pytest.fixture
def docs() -> list[Doc]:
    return docs_of(TEXTS)


@by_encoder
@by_place
def test_every_token_has_a_vector(docs: list[Doc], place: str, encoder: str):
    model = network(place, encoder).initialize(X=docs)
    width = WIDTH if place == "input" else WIDTH + ELMO_WIDTH
    assert [vectors.shape for vectors in model.predict(docs)] == [(len(doc), width) for doc in docs]
    assert model.get_dim("nO") == width


@by_encoder
@by_place
@pytest.mark.parametrize("texts", [[], [""], ["", ""]], ids=["no Doc", "one empty Doc", "empty Docs"])
def test_batches_without_words(docs: list[Doc], place: str, encoder: str, texts: list[str]):
    model = network(place, encoder).initialize(X=docs)
    vectors, backprop = model.begin_update(docs_of(texts))
    assert [array.shape for array in vectors] == [(0, model.get_dim("nO"))] * len(texts)
    assert backprop(vectors) == []


def test_a_doc_has_the_same_vectors_in_any_batch(docs: list[Doc]):
    model = network("both").initialize(X=docs)
    for doc, vectors in zip(docs, model.predict(docs)):
        np.testing.assert_allclose(model.predict([doc])[0], vectors, atol=1e-6)


def test_output_is_the_encoding_and_elmo_side_by_side(docs: list[Doc]):
    model = network("output").initialize(X=docs)
    hidden = model.get_ref("encode").predict(model.get_ref("embed").predict(docs))
    for joined, h, e in zip(model.predict(docs), hidden, model.get_ref("elmo_output").predict(docs)):
        np.testing.assert_allclose(joined, np.hstack([h, e]), atol=1e-6)


def test_input_goes_through_the_encoder(docs: list[Doc]):
    model = network("input").initialize(X=docs)
    before = model.predict(docs)
    model.get_ref("elmo_input").set_param("factor", np.zeros(1, dtype=np.float32))
    assert not np.allclose(model.predict(docs)[1], before[1])


def test_without_encoder_the_input_is_the_result(docs: list[Doc]):
    model = build_elmo_tok2vec(embedding(), None, elmo()).initialize(X=docs)
    pairs = zip(model.get_ref("embed").predict(docs), model.get_ref("elmo_input").predict(docs))
    for joined, pair in zip(model.predict(docs), pairs):
        np.testing.assert_array_equal(joined, np.hstack(pair))


def test_elmo_alone_at_the_input(docs: list[Doc]):
    model = build_elmo_tok2vec(None, encoding(), elmo()).initialize(X=docs)
    assert model.predict(docs)[4].shape == (5, WIDTH)


@by_encoder
@by_place
def test_gradients_are_those_of_finite_differences(docs: list[Doc], place: str, encoder: str):
    fix_random_seed(0)
    model = network(place, encoder).initialize(X=docs)
    generator = np.random.default_rng(0)
    vectors, backprop = model.begin_update(docs)
    direction = [generator.standard_normal(array.shape).astype(np.float32) for array in vectors]
    backprop(direction)

    def loss() -> float:
        return sum(float((v.astype(np.float64) * d).sum()) for v, d in zip(model.predict(docs), direction))

    checked = 0
    for node in model.walk():
        for name in node.param_names:
            value, gradient = node.get_param(name).copy(), node.get_grad(name)
            # Along its own gradient, a parameter changes the loss by the square of the gradient's length. The step is so short
            # that neither the parameter nor the loss changes much.
            length = float(np.linalg.norm(gradient)) + 1e-8
            step = min(1e-3, 1e-2 / length) / length
            node.set_param(name, value + step * gradient)
            above = loss()
            node.set_param(name, value - step * gradient)
            difference = (above - loss()) / (2 * step)
            node.set_param(name, value)
            np.testing.assert_allclose(difference, (gradient**2).sum(), rtol=0.03, atol=1e-2)
            checked += 1
    assert checked >= 5


def test_the_two_places_learn_apart(docs: list[Doc]):
    model = network("both").initialize(X=docs)
    vectors, backprop = model.begin_update(docs)
    backprop([np.ones_like(array) for array in vectors])
    gradients = [model.get_ref(name).get_grad("factor")[0] for name in ("elmo_input", "elmo_output")]
    assert gradients[0] != 0 and gradients[1] != 0 and gradients[0] != gradients[1]


@by_encoder
@by_place
def test_weights_survive_serialization(docs: list[Doc], place: str, encoder: str):
    model = network(place, encoder).initialize(X=docs)
    again = network(place, encoder).from_bytes(model.to_bytes())
    for loaded, vectors in zip(again.predict(docs), model.predict(docs)):
        np.testing.assert_array_equal(loaded, vectors)


def test_copy_has_its_own_weights(docs: list[Doc]):
    model = network("both").initialize(X=docs)
    before = model.predict(docs)
    copied = model.copy()
    for node in copied.walk():
        if node.name == "elmo":
            node.set_param("factor", np.zeros(1, dtype=np.float32))
    np.testing.assert_array_equal(model.predict(docs)[1], before[1])
    assert not np.allclose(copied.predict(docs)[1], before[1])


@pytest.fixture
def vocab_with_vectors() -> Vocab:
    vocab = Vocab()
    vectors = np.random.default_rng(0).standard_normal((4, 7)).astype(np.float32)
    for word, vector in zip(["the", "bank", "paid", "a"], vectors):
        vocab.set_vector(word, vector)
    return vocab


def test_static_vectors_beside_hash_embeddings(vocab_with_vectors: Vocab):
    docs = docs_of(TEXTS, vocab_with_vectors)
    model = network("input", vectors=True).initialize(X=docs)
    assert [len(vectors) for vectors in model.predict(docs)] == [len(doc) for doc in docs]


def test_static_vectors_beside_elmo(vocab_with_vectors: Vocab):
    docs = docs_of(TEXTS, vocab_with_vectors)
    model = build_elmo_tok2vec(build_static_vectors(4), None, elmo()).initialize(X=docs)
    before = model.predict(docs)
    assert [array.shape for array in before] == [(len(doc), 4 + ELMO_WIDTH) for doc in docs]
    _, backprop = model.begin_update(docs)
    backprop([np.ones_like(array) for array in before])
    assert np.abs(model.get_ref("embed").layers[0].get_grad("W")).sum() > 0


@pytest.mark.parametrize(
    ("places", "problem"),
    [
        ({"embed": embedding(), "encode": encoding()}, "no ELMo"),
        ({"embed": None, "encode": encoding(), "elmo_output": elmo()}, "nothing goes into the encoder"),
        ({"embed": embedding(), "encode": None, "elmo_output": elmo()}, "no 'encode'"),
        ({"embed": embedding(), "encode": Model("odd", _forward_elmo), "elmo_input": elmo()}, "'odd'"),
    ],
)
def test_what_makes_no_network(places: dict[str, Any], problem: str):
    with pytest.raises(ConfigError, match=rf"E350.*{problem}"):
        build_elmo_tok2vec(**places)


def test_widths_that_do_not_fit(docs: list[Doc]):
    model = build_elmo_tok2vec(embedding(width=WIDTH + 1), encoding(), None, elmo())
    with pytest.raises(ConfigError, match=r"E351.*width 6, .* gives 7.*tok2vec.embed"):
        model.initialize(X=docs)


def test_widths_of_the_input_need_not_fit(docs: list[Doc]):
    model = build_elmo_tok2vec(embedding(width=WIDTH + 1), encoding(), elmo()).initialize(X=docs)
    assert model.get_dim("nO") == WIDTH


@registry.architectures("spacy_elmo_test.Elmo.v1")
def build_elmo_for_test() -> Model:
    return elmo()


@pytest.mark.parametrize("component", ["tagger", "ner", "textcat"])
@by_place
def test_it_fits_the_stock_models(component: str, place: str):
    at_input, at_output = PLACES[place]
    listener = {"@architectures": "spacy_elmo_test.Elmo.v1"}
    tok2vec = {
        "@architectures": "spacy_elmo.ElmoTok2Vec.v1",
        "embed": {
            "@architectures": "spacy.MultiHashEmbed.v2",
            "width": WIDTH,
            "attrs": ["NORM"],
            "rows": [40],
            "include_static_vectors": False,
        },
        "encode": {
            "@architectures": "spacy.MaxoutWindowEncoder.v2",
            "width": WIDTH,
            **ENCODERS["spacy.MaxoutWindowEncoder.v2"],
        },
        "elmo_input": listener if at_input else None,
        "elmo_output": listener if at_output else None,
    }
    nlp = spacy.blank("en")
    nlp.add_pipe(component, config={"model": {"tok2vec": tok2vec}})
    reference = {
        "words": "She paid Anna".split(),
        "tags": ["PRP", "VBD", "NNP"],
        "entities": ["O", "O", "U-PERSON"],
        "cats": {"good": 1.0, "bad": 0.0},
    }
    doc = nlp.make_doc("She paid Anna")
    examples = [spacy.training.Example.from_dict(doc, reference)]
    optimizer = nlp.initialize(lambda: examples)
    losses = [nlp.update(examples, sgd=optimizer)[component] for _ in range(15)]
    assert losses[-1] < losses[0]
    assert nlp("She paid Anna") is not None and len(nlp("")) == 0
