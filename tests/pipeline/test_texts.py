"""Texts of every kind: as many vectors as tokens, and the right ones."""

from __future__ import annotations

import time

import numpy as np
import pytest
from spacy.language import Language
from spacy.tokens import Doc


def test_empty_doc(nlp: Language):
    doc = nlp("")
    assert doc._.elmo.shape == doc.tensor.shape == (0, 16)
    assert doc[0:0]._.elmo.tolist() == [0.0] * 16


@pytest.mark.parametrize("text", [" ", "\n\n", " \t \n", "\u00a0", "\u3000"])
def test_whitespace_only_has_zeros(nlp: Language, text: str):
    doc = nlp(text)
    assert len(doc) == 1 and not doc._.elmo.any()


def test_one_token(nlp: Language, mixed):
    np.testing.assert_allclose(nlp("bank")._.elmo, mixed(["bank"]), atol=1e-6)


def test_whitespace_between_words_changes_no_vector(nlp: Language, mixed):
    doc = nlp("I sat \n\n on  the bank ")
    vectors = doc._.elmo
    is_space = [token.is_space for token in doc]
    assert sum(is_space) == 2
    assert not vectors[is_space].any()
    np.testing.assert_allclose(
        vectors[[not space for space in is_space]], mixed("I sat on the bank".split()), atol=1e-6
    )


@pytest.mark.parametrize(
    "words",
    [
        ["so", "😀", "👩‍👩‍👧", "🇩🇪"],
        ["x" * 5000, "bank"],
        ["nul\0l", "\0"],
        ["Привет", "世界", "שלום", "ไทย", "e\u0301", "ﬁ", "\ufffd", "\u202e"],
        ["a\u200bb", "\ufeff", "\x7f"],
    ],
    ids=["emoji", "long", "nul", "scripts", "invisible"],
)
def test_words_of_every_kind(nlp: Language, mixed, words: list[str]):
    doc = nlp(Doc(nlp.vocab, words=words))
    np.testing.assert_allclose(doc._.elmo, mixed(words), atol=1e-6)
    assert np.isfinite(doc._.elmo).all()
    np.testing.assert_allclose(doc[1]._.elmo, mixed(words)[1], atol=1e-6)


@pytest.mark.parametrize("words", [["lone\ud800"], [""]], ids=["surrogate", "empty word"])
def test_what_spacy_refuses_never_reaches_us(nlp: Language, words: list[str]):
    with pytest.raises(ValueError):
        Doc(nlp.vocab, words=words)


def test_words_spelled_like_boundaries_are_words(nlp: Language, mixed):
    words = ["a", "<S>", "</S>", "bank"]
    vectors = nlp(Doc(nlp.vocab, words=words))._.elmo
    np.testing.assert_allclose(vectors, mixed(words), atol=1e-6)
    # Were they boundaries, the words around them would not see each other.
    other = nlp(Doc(nlp.vocab, words=["a", "<S>", "</S>", "river"]))._.elmo
    assert not np.allclose(vectors[0], other[0], atol=1e-6)


def test_doc_made_by_hand_without_spaces(nlp: Language, mixed):
    doc = nlp(Doc(nlp.vocab, words=["a", "bank", "paid"], spaces=[False, False, False]))
    assert doc.text == "abankpaid"
    np.testing.assert_allclose(doc._.elmo, mixed(["a", "bank", "paid"]), atol=1e-6)
    np.testing.assert_allclose(doc[1]._.elmo, mixed(["a", "bank", "paid"])[1], atol=1e-6)


def test_words_with_spaces_inside_are_words(nlp: Language, mixed):
    words = ["New York", "paid"]
    np.testing.assert_allclose(nlp(Doc(nlp.vocab, words=words))._.elmo, mixed(words), atol=1e-6)


def test_empty_docs_between_others(nlp: Language, mixed):
    docs = list(nlp.pipe(["", "a bank", "", " ", "they paid", ""]))
    assert [len(doc._.elmo) for doc in docs] == [0, 2, 0, 1, 2, 0]
    np.testing.assert_allclose(docs[4]._.elmo, mixed(["they", "paid"]), atol=1e-6)


def test_fifty_thousand_empty_docs_cost_little(nlp: Language):
    docs = [Doc(nlp.vocab) for _ in range(50_000)]
    elmo = nlp.get_pipe("elmo")
    start = time.process_time()
    assert sum(doc.tensor.shape == (0, 16) for doc in elmo.pipe(docs)) == 50_000
    assert time.process_time() - start < 10


def test_long_doc_without_sentences_is_one_sequence(nlp: Language, mixed):
    words = "the bank by the river paid well".split() * 300
    np.testing.assert_allclose(nlp(Doc(nlp.vocab, words=words))._.elmo, mixed(words), atol=1e-5)
