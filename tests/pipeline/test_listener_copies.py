"""Listeners in other processes, in threads, and in copies of a pipeline."""

from __future__ import annotations

import copy
import pickle
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import spacy
from spacy.language import Language
from thinc.api import Adam, Model

from spacy_elmo.layers.listener import LINK, listeners_of
from tests.pipeline.toy_data import make_examples, make_listening, outcome

TEXTS = ["I sat on the bank", "", "they paid the bank", " \n ", "a", "and so on .", "the river bent"]


@pytest.fixture
def listening(make_nlp) -> Callable[..., Language]:
    """A function that makes a trained pipeline of an elmo pipe and two that listen to it."""
    return partial(make_listening, make_nlp)


def listener_of(nlp: Language, name: str) -> Model:
    ((listener, _),) = listeners_of(nlp.get_pipe(name))
    return listener


def test_processes_give_the_same(listening):
    nlp = listening()
    expected = [outcome(doc) for doc in nlp.pipe(TEXTS)]
    assert [outcome(doc) for doc in nlp.pipe(TEXTS, n_process=2, batch_size=2)] == expected


def test_threads_give_the_same(listening):
    nlp = listening()
    expected = {text: outcome(nlp(text)) for text in TEXTS}
    wrong: list[str] = []

    def work(texts: list[str]) -> None:
        wrong.extend(doc.text for doc in nlp.pipe(texts * 5, batch_size=3) if outcome(doc) != expected[doc.text])

    threads = [threading.Thread(target=work, args=(TEXTS[n:] + TEXTS[:n],)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


WAYS = {
    "pickle": lambda nlp, path: pickle.loads(pickle.dumps(nlp)),
    "deepcopy": lambda nlp, path: copy.deepcopy(nlp),
    "bytes": lambda nlp, path: spacy.util.load_model_from_config(nlp.config, auto_fill=True).from_bytes(nlp.to_bytes()),
    "disk": lambda nlp, path: (nlp.to_disk(path), spacy.load(path))[1],
}


@pytest.mark.parametrize("frozen", [True, False])
@pytest.mark.parametrize("way", WAYS)
def test_saved_and_copied_pipelines_predict_and_train_alike(listening, tmp_path: Path, way: str, frozen: bool):
    nlp = listening(frozen=frozen)
    # Nobody has given a gradient: the batch is still waiting.
    nlp.update(make_examples(nlp), sgd=Adam(), exclude=["tagger", "ner"])
    copied = WAYS[way](nlp, tmp_path)
    assert [outcome(doc) for doc in copied.pipe(TEXTS)] == [outcome(doc) for doc in nlp.pipe(TEXTS)]
    link = listener_of(copied, "tagger").attrs[LINK]
    assert link.upstream is copied.get_pipe("elmo") is not nlp.get_pipe("elmo")
    assert copied.get_pipe("elmo").listening_components == ["tagger", "ner"]
    assert copied.update(make_examples(copied), sgd=Adam())["tagger"] > 0


def test_copy_of_a_model_listens_to_the_same_pipe(listening):
    nlp = listening()
    tagger = nlp.get_pipe("tagger")
    for model in (copy.deepcopy(tagger.model), tagger.model.copy()):
        ((listener, link),) = listeners_of(type("Component", (), {"model": model}))
        assert link.upstream is nlp.get_pipe("elmo") and listener is not listener_of(nlp, "tagger")
        np.testing.assert_allclose(model.predict([nlp("a bank")])[0], tagger.model.predict([nlp("a bank")])[0])
