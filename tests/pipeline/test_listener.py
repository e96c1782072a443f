"""What listeners get of an elmo pipe, in training and in prediction: always its layers, as it has read the Doc."""

from __future__ import annotations

import gc
import warnings
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import spacy
from spacy.language import Language
from spacy.tokens import Doc, DocBin
from spacy.training import Example
from thinc.api import Adam, Model

from spacy_elmo.errors import ElmoWarning
from spacy_elmo.layers import handover
from spacy_elmo.layers.shim import BiLMShim
from spacy_elmo.pipeline.component import Elmo
from tests.pipeline.toy_data import add_listening, make_examples, make_listening, outcome, train

TEXTS = ["I sat on the bank", "", "they paid the bank", " \n ", "a", "and so on .", "the river bent"]


@pytest.fixture
def listening(make_nlp) -> Callable[..., Language]:
    """A function that makes a trained pipeline of an elmo pipe and two that listen to it."""
    return partial(make_listening, make_nlp)


@pytest.fixture
def received(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Doc, np.ndarray]]:
    """Fills with each Doc and the layers that a listener has had for it in a prediction."""
    from spacy_elmo.layers import listener

    found: list[tuple[Doc, np.ndarray]] = []
    complete = listener._complete

    def noted(model: Model, upstream: Any, docs: list[Doc], layers: Any) -> list[np.ndarray]:
        complete_layers = complete(model, upstream, docs, layers)
        found.extend(zip(docs, complete_layers))
        return complete_layers

    monkeypatch.setattr(listener, "_complete", noted)
    return found


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Fills with the number of sentences of each run of a biLM."""
    counted: list[int] = []
    predict = BiLMShim.predict

    def noted(self: BiLMShim, fwd_args: Any) -> Any:
        counted.append(len(fwd_args[0]))
        return predict(self, fwd_args)

    monkeypatch.setattr(BiLMShim, "predict", noted)
    yield counted


@pytest.mark.parametrize("store", ["mixed", "layers", "none"])
@pytest.mark.parametrize("batch_size", [1, 2, 100])
def test_listeners_have_the_layers_of_the_bilm(listening, received, layers_of, store: str, batch_size: int):
    nlp = listening(store=store)
    received.clear()
    docs = list(nlp.pipe(TEXTS, batch_size=batch_size))
    assert {doc.text for doc, _ in received} >= {text for text in TEXTS if text}
    assert len(received) == 2 * len(TEXTS) or batch_size == 1, "spaCy passes no batch on that has no words"
    for doc, layers in received:
        words = [token.text for token in doc if not token.is_space]
        expected = layers_of(words) if words else np.zeros((len(doc), 3, 16))
        np.testing.assert_allclose(layers, expected, atol=1e-5)
    assert [doc.text for doc in docs] == TEXTS


def test_bilm_runs_once_for_all_listeners(listening, runs):
    nlp = listening(cache_bytes=0)
    runs.clear()
    nlp("the bank paid")
    assert len(runs) == 1
    list(nlp.pipe(TEXTS))
    assert len(runs) == 2
    nlp.update(make_examples(nlp), sgd=Adam())
    assert len(runs) == 3
    nlp.update(make_examples(nlp), sgd=Adam(), annotates=["elmo", "tagger"])
    assert len(runs) == 4


def test_bilm_runs_in_the_first_epoch_only(listening, runs):
    nlp = listening()
    examples = make_examples(nlp)
    runs.clear()
    for _ in range(3):
        nlp.update(examples, sgd=Adam())
        nlp.evaluate(examples)
    assert runs == []


def test_nothing_is_remembered_outside_of_training(listening, tmp_path: Path, runs):
    listening().to_disk(tmp_path)
    nlp = spacy.load(tmp_path)
    runs.clear()
    for _ in range(3):
        nlp("the bank paid")
    assert len(runs) == 3


def test_frozen_bilm_keeps_no_graph_and_its_weights(listening):
    nlp = listening()
    weights = {name: weight.clone() for name, weight in nlp.get_pipe("elmo").bilm.named_parameters()}
    losses = nlp.update(make_examples(nlp), sgd=Adam())
    assert losses["elmo"] == 0.0
    for name, weight in nlp.get_pipe("elmo").bilm.named_parameters():
        assert not weight.requires_grad and weight.grad is None
        assert bool((weight == weights[name]).all())


def test_each_listener_learns_a_mix_of_its_own(listening):
    nlp = listening()
    mixes = {
        name: next(node for node in nlp.get_pipe(name).model.walk() if node.name == "scalar_mix")
        for name in ("tagger", "ner")
    }
    train(nlp, make_examples(nlp), steps=20)
    tagger, ner = (mix.get_param("W") for mix in mixes.values())
    assert np.abs(tagger).max() > 1e-3 and np.abs(tagger - ner).max() > 1e-3


def test_training_goes_the_same_way_with_and_without_what_is_remembered(listening):
    losses = []
    for cache_bytes in (0, 2**20):
        nlp = listening(cache_bytes=cache_bytes)
        losses.append(train(nlp, make_examples(nlp), steps=5)["tagger"])
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


@pytest.mark.parametrize("place", ["before", "after"])
def test_stock_tok2vec_stands_beside(make_nlp, place: str):
    nlp = make_nlp()
    nlp.add_pipe("tok2vec", **{place: "elmo"})
    listener = {"@architectures": "spacy.Tok2VecListener.v1", "width": 96, "upstream": "*"}
    nlp.add_pipe("tagger", config={"model": {"tok2vec": listener}})
    add_listening(nlp, "ner", layer_norm="token")
    losses = train(nlp, make_examples(nlp), steps=40)
    assert losses["tok2vec"] > 0
    assert nlp.get_pipe("tok2vec").listening_components == ["tagger"]
    assert nlp.get_pipe("elmo").listening_components == ["ner"]
    doc = nlp("the bank paid Anna")
    assert [(token.tag_, token.ent_type_) for token in doc] == [("D", ""), ("N", "ORG"), ("V", ""), ("P", "PERSON")]
    assert doc.tensor.shape == (4, 96) and doc._.elmo.shape == (4, 16)


def test_widths_are_known_without_examples_and_without_a_run(make_nlp, runs):
    nlp = make_nlp()
    tagger, projected = add_listening(nlp, "tagger"), add_listening(nlp, "tagger", "projected", width=7)
    nlp.get_pipe("elmo").initialize(lambda: [], nlp=nlp)
    for pipe, width in ((tagger, 16), (projected, 7)):
        tok2vec = pipe.model.get_ref("tok2vec")
        tok2vec.initialize()
        assert tok2vec.get_dim("nO") == width
    assert runs == []


@pytest.mark.parametrize("factory", ["tagger", "parser", "ner", "textcat", "spancat"])
def test_batches_with_empty_docs_train_and_predict(make_nlp, factory: str):
    nlp = make_nlp()
    add_listening(nlp, factory)
    examples = make_examples(nlp)
    empty = Example.from_dict(nlp.make_doc(""), {"cats": {"money": 0.0, "river": 1.0}} if factory == "textcat" else {})
    optimizer = nlp.initialize(lambda: examples)
    if factory != "spancat":  # it asks each example for its spans
        nlp.update([empty, examples[0], empty, examples[1], empty], sgd=optimizer)
    nlp.update([examples[0]], sgd=optimizer)
    assert [len(doc) for doc in nlp.pipe(["", "the bank", "", ""])] == [0, 2, 0, 0]


def test_sentences_count_as_they_were_when_the_elmo_pipe_read_them(make_nlp, received, layers_of):
    nlp = make_nlp()
    nlp.add_pipe("sentencizer")
    add_listening(nlp, "tagger")
    train(nlp, make_examples(nlp), steps=1)
    received.clear()
    doc = nlp("they paid . a bank .")
    assert len(list(doc.sents)) == 2
    np.testing.assert_allclose(received[0][1], layers_of("they paid . a bank .".split()), atol=1e-5)


@pytest.mark.parametrize("annotates", [[], ["sentencizer"]])
def test_sentences_that_are_marked_in_use_but_not_in_training_are_a_warning(make_nlp, annotates: list[str]):
    nlp = make_nlp()
    nlp.add_pipe("sentencizer", first=True)
    add_listening(nlp, "tagger")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        train(nlp, make_examples(nlp), steps=3, annotates=annotates)
    found = [str(each.message) for each in caught if each.category is ElmoWarning]
    assert len(found) == (0 if annotates else 1)
    assert annotates or ("W303" in found[0] and "['sentencizer']" in found[0])


@pytest.mark.parametrize("frozen", [True, False])
def test_two_listeners_of_one_component_have_mixes_of_their_own(make_nlp, frozen: bool):
    listener = {"@architectures": "spacy_elmo.ElmoListener.v1", "dropout": 0.0}
    encode = {"@architectures": "spacy.MaxoutWindowEncoder.v2", "width": 8, "depth": 1, "window_size": 1}
    tok2vec = {
        "@architectures": "spacy_elmo.ElmoTok2Vec.v1",
        "embed": None,
        "encode": {**encode, "maxout_pieces": 2},
        "elmo_input": listener,
        "elmo_output": listener,
    }
    nlp = make_nlp(frozen=frozen)
    nlp.add_pipe("tagger", config={"model": {"@architectures": "spacy.Tagger.v2", "tok2vec": tok2vec}})
    losses = train(nlp, make_examples(nlp), steps=60)
    assert len(nlp.get_pipe("elmo").listeners) == 2
    mixes = [node.get_param("W") for node in nlp.get_pipe("tagger").model.walk() if node.name == "scalar_mix"]
    assert len(mixes) == 2 and np.abs(mixes[0] - mixes[1]).max() > 1e-3
    assert losses["tagger"] < 1 and (losses["elmo"] == 0) is frozen
    assert [token.tag_ for token in nlp("the bank paid Anna")] == ["D", "N", "V", "P"]


def test_docs_that_were_retokenized_are_read_anew(listening, received, layers_of):
    nlp = listening()
    nlp.add_pipe("merge_first_two", after="elmo")
    received.clear()
    nlp("river bank paid")
    np.testing.assert_allclose(received[0][1], layers_of(["river bank", "paid"]), atol=1e-5)


@Language.component("merge_first_two")
def merge_first_two(doc: Doc) -> Doc:
    with doc.retokenize() as retokenizer:
        retokenizer.merge(doc[:2])
    return doc


def test_disabled_elmo_pipe_still_serves_its_listeners(listening, runs):
    nlp = listening(cache_bytes=0)
    expected = [outcome(doc) for doc in nlp.pipe(TEXTS)]
    runs.clear()
    with nlp.select_pipes(disable="elmo"):
        docs = list(nlp.pipe(TEXTS))
    assert [outcome(doc) for doc in docs] == expected
    assert all(doc.user_data == {} for doc in docs)
    assert len(runs) == 1, "the first listener leaves layers for the other"


def test_component_that_is_called_by_itself_has_layers(listening):
    nlp = listening()
    doc = nlp.get_pipe("tagger")(nlp.make_doc("the bank paid"))
    assert [token.tag_ for token in doc] == [token.tag_ for token in nlp("the bank paid")]


def test_component_that_is_updated_by_itself_learns(listening):
    nlp = listening()
    tagger = nlp.get_pipe("tagger")
    first = tagger.update(make_examples(nlp), sgd=Adam(0.05))["tagger"]
    for _ in range(20):
        last = tagger.update(make_examples(nlp), sgd=(optimizer := Adam(0.05)))["tagger"]
    assert optimizer is not None and last < first


def test_nothing_is_left_when_the_last_listener_has_had_its_layers(listening):
    nlp = listening()
    doc = nlp("the bank paid")
    assert not any(each.has_layers for each in handover.handovers(doc))
    assert len(handover.handovers(doc)) == 1


def test_layers_nobody_asked_for_go_with_their_doc(listening):
    nlp = listening()
    with nlp.select_pipes(disable="ner"):
        doc = nlp("the bank paid")
    assert [each.has_layers for each in handover.handovers(doc)] == [True]
    gone = weakref.ref(handover.handovers(doc)[0])
    del doc
    gc.collect()
    assert gone() is None


def test_layers_that_wait_are_bounded_and_the_result_is_not_changed(
    listening, received, monkeypatch: pytest.MonkeyPatch
):
    nlp = listening()
    expected = [outcome(doc) for doc in nlp.pipe(TEXTS)]
    layers = [array for _, array in received][-len(TEXTS) :]
    monkeypatch.setattr(handover, "BYTES_IN_TRANSIT", 1000)
    received.clear()
    with nlp.select_pipes(disable=["tagger", "ner"]):
        docs = list(nlp.pipe(TEXTS))
    waiting = [each.n_bytes for doc in docs for each in handover.handovers(doc) if each.has_layers]
    assert 0 < sum(waiting) <= 1000
    assert [outcome(doc) for doc in nlp.pipe(TEXTS)] == expected
    for (_, array), known in zip(received[-len(TEXTS) :], layers):
        np.testing.assert_allclose(array, known, atol=1e-5)


def test_layers_are_not_in_the_doc(listening):
    nlp = listening()
    with nlp.select_pipes(disable="ner"):
        waiting = nlp("the bank paid")
    plain = nlp("the bank paid")
    assert set(waiting.user_data) == set(plain.user_data)
    assert len(waiting.to_bytes()) == len(plain.to_bytes())


def test_docs_that_were_annotated_elsewhere_are_read_again(listening):
    nlp = listening(store="layers")
    docs = list(nlp.pipe(TEXTS))
    expected = [outcome(doc) for doc in docs]
    stored = DocBin(docs=docs, store_user_data=True).to_bytes()
    again = list(DocBin().from_bytes(stored).get_docs(nlp.vocab))
    with nlp.select_pipes(disable="elmo"):
        assert [outcome(doc) for doc in nlp.pipe(again)] == expected


def test_rehearsal_runs(listening):
    nlp = listening()
    nlp.resume_training()
    losses = nlp.rehearse(make_examples(nlp), losses={})
    assert "tagger" in losses


def test_pipe_is_what_spacy_calls_listened_to(make_nlp):
    from spacy import ty

    assert isinstance(make_nlp().get_pipe("elmo"), ty.ListenedToComponent)


def test_linking_again_changes_nothing(listening):
    nlp = listening()
    elmo: Elmo = nlp.get_pipe("elmo")
    listeners = elmo.listeners
    for _ in range(2):
        nlp._link_components()
    assert [id(each) for each in elmo.listeners] == [id(each) for each in listeners]
    assert elmo.remove_listener(listeners[0], "tagger") and not elmo.remove_listener(listeners[0], "tagger")
    assert elmo.listening_components == ["ner"]


def test_dropout_of_the_training_does_not_touch_that_of_the_listener(make_nlp, layers_of):
    nlp = make_nlp()
    add_listening(nlp, "tagger", dropout=0.9)
    examples = make_examples(nlp)
    nlp.initialize(lambda: examples)
    nlp.update(examples, drop=0.0)
    docs = [eg.predicted for eg in examples]
    vectors, _ = nlp.get_pipe("tagger").model.get_ref("tok2vec").begin_update(docs)
    dropped = np.concatenate(vectors) == 0
    assert 0.7 < dropped.mean() < 1.0
