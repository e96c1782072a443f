"""The layers of one batch on their way to the listeners, and the gradients on their way back."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
from spacy.tokens import Doc
from spacy.vocab import Vocab

from spacy_elmo.pipeline.training import UpdateBatch

TEXTS = ["a bank", "", "a bank", "they paid"]


@pytest.fixture
def docs() -> list[Doc]:
    vocab = Vocab()
    return [Doc(vocab, words=text.split()) for text in TEXTS]


@pytest.fixture
def layers(docs: list[Doc]) -> list[np.ndarray]:
    """Each Doc has layers of its own, as if sentences were marked in one and not in the other."""
    return [np.full((len(doc), 3, 4), index, dtype=np.float32) for index, doc in enumerate(docs)]


def numbers(layers: list[Any]) -> list[Any]:
    return [None if each is None else each.max(initial=-1) for each in layers]


def test_copies_of_docs_have_the_layers_of_their_originals_in_order(docs: list[Doc], layers: list[np.ndarray]):
    batch = UpdateBatch(docs, layers, expected=9)
    taken, _ = batch.take([doc.copy() for doc in docs])
    assert numbers(taken) == [0, -1, 2, 3]
    taken, _ = batch.take([docs[3].copy(), docs[0].copy()])
    assert numbers(taken) == [3, 0]


def test_docs_that_are_not_of_the_batch_have_none(docs: list[Doc], layers: list[np.ndarray]):
    batch = UpdateBatch(docs, layers, expected=9)
    other = Doc(docs[0].vocab, words=["bank", "a"])
    copies = [docs[0].copy() for _ in range(3)]
    assert numbers(batch.take([other, docs[3], *copies])[0]) == [None, 3, 0, 2, None]


def test_part_of_the_docs_has_its_own_layers_and_not_those_of_the_same_words(docs: list[Doc], layers: list[np.ndarray]):
    batch = UpdateBatch(docs, layers, expected=9)
    assert numbers(batch.take([docs[2], docs[3]])[0]) == [2, 3]


def test_doc_that_was_changed_is_not_of_the_batch(docs: list[Doc], layers: list[np.ndarray]):
    batch = UpdateBatch(docs, layers, expected=9)
    with docs[3].retokenize() as retokenizer:
        retokenizer.merge(docs[3][:])
    assert numbers(batch.take(docs)[0]) == [0, -1, 2, None]


def test_only_the_very_docs_are_found(docs: list[Doc], layers: list[np.ndarray]):
    batch = UpdateBatch(docs, layers, expected=9)
    assert numbers(batch.find(docs[2:]) or []) == [2, 3]
    assert batch.find([docs[0].copy()]) is None


def test_layers_are_dropped_when_the_last_listener_has_had_them(docs: list[Doc], layers: list[np.ndarray]):
    batch = UpdateBatch(docs, layers, expected=2)
    batch.take(docs)
    assert batch.find(docs) is not None
    batch.take(docs)
    assert batch.find(docs) is None
    assert numbers(batch.take(docs)[0]) == [None] * 4


def test_gradients_of_all_listeners_go_back_once(docs: list[Doc], layers: list[np.ndarray]):
    went: list[list[np.ndarray]] = []
    losses: list[float] = []
    batch = UpdateBatch(docs, layers, 2, lambda d_layers: went.append(d_layers) or [], losses.append)
    assert batch.is_waiting
    for factor in (1, 10):
        taken, backprop = batch.take([doc.copy() for doc in docs])
        backprop([each * factor for each in taken])
    assert not batch.is_waiting and went == []
    batch.settle()
    batch.settle()
    assert len(went) == 1
    for index, gradient in enumerate(went[0]):
        np.testing.assert_array_equal(gradient, layers[index] * 11)
    assert losses[1] == pytest.approx(100 * losses[0]) and losses[0] > 0


def test_what_was_put_off_is_done_with_the_last_gradient(docs: list[Doc], layers: list[np.ndarray]):
    done: list[str] = []
    batch = UpdateBatch(docs, layers, 2, lambda d_layers: done.append("backprop") or [])
    batch.finish = lambda: done.append("finish")
    ways = [batch.take(docs)[1] for _ in range(2)]
    ways[0](layers)
    assert done == []
    ways[1](layers)
    assert done == ["backprop", "finish"]
    ways[1](layers)
    assert done == ["backprop", "finish"], "the graph is gone"


def test_copies_and_pickles_are_nothing(docs: list[Doc], layers: list[np.ndarray]):
    batch = UpdateBatch(docs, layers, 2, lambda d_layers: [])
    assert copy.deepcopy(batch) is None and pickle.loads(pickle.dumps(batch)) is None
