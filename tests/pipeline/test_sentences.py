from __future__ import annotations

import pickle

import numpy as np
import pytest
import spacy
from spacy import registry
from spacy.language import Language
from spacy.tokens import Doc
from spacy.training import Example

from spacy_elmo.errors import ConfigError
from spacy_elmo.pipeline.sentences import doc_spans, punctuation_spans, sentence_spans, strided_spans
from tests.pipeline.toy_data import add_listening, train


def words(count: int, starts: tuple[int, ...] | None = None) -> Doc:
    sent_starts = None if starts is None else [index in starts for index in range(count)]
    return Doc(spacy.blank("en").vocab, words=[str(n) for n in range(count)], sent_starts=sent_starts)


def bounds(getter, *docs: Doc) -> list[list[tuple[int, int]]]:
    return [[(span.start, span.end) for span in spans] for spans in getter(list(docs))]


def test_marked_sentences_are_sequences():
    assert bounds(sentence_spans(), words(5, (0, 2))) == [[(0, 2), (2, 5)]]


def test_doc_without_marks_is_one_sequence():
    assert bounds(sentence_spans(), words(5)) == [[(0, 5)]]


def test_each_doc_has_its_own_spans():
    assert bounds(sentence_spans(), words(3), words(0), words(2, (0, 1))) == [[(0, 3)], [], [(0, 1), (1, 2)]]


def test_long_sentences_are_read_in_windows_that_overlap_by_half():
    assert bounds(sentence_spans(max_words=4), words(10, (0, 7))) == [[(0, 4), (2, 6), (4, 7), (7, 10)]]


TEXT = "Anna sat. She paid (well)! \n And?"


def test_punctuation_ends_sentences_as_in_the_sentencizer_and_nothing_is_marked():
    nlp = spacy.blank("en")
    doc, sentencizer = nlp.make_doc(TEXT), nlp.add_pipe("sentencizer")
    expected = [(sentence.start, sentence.end) for sentence in sentencizer(nlp.make_doc(TEXT)).sents]
    assert len(expected) > 2 and bounds(punctuation_spans(), doc) == [expected]
    assert not doc.has_annotation("SENT_START")


def test_punctuation_is_heeded_whatever_is_marked():
    doc = Doc(spacy.blank("en").vocab, words=["a", ".", "b", "c"], sent_starts=[True, False, False, True])
    assert bounds(punctuation_spans(), doc) == [[(0, 2), (2, 4)]]
    assert [token.i for token in doc if token.is_sent_start] == [0, 3]


def test_punctuation_spans_of_docs_without_words():
    vocab = spacy.blank("en").vocab
    assert bounds(punctuation_spans(), Doc(vocab), Doc(vocab)) == [[], []]
    assert bounds(punctuation_spans(), Doc(vocab), Doc(vocab, words=["."])) == [[], [(0, 1)]]


def test_other_characters_can_end_sentences_and_long_ones_are_cut():
    doc = Doc(spacy.blank("en").vocab, words="a b c d e | f .".split())
    assert bounds(punctuation_spans(["|"], max_words=4), doc) == [[(0, 4), (2, 6), (6, 8)]]


def test_senter_learns_beside_a_pipe_that_reads_by_punctuation(make_nlp):
    nlp = make_nlp({"@misc": "spacy_elmo.punctuation_spans.v1"})
    add_listening(nlp, "senter")
    words, starts = ["Anna", "sat", "she", "paid"], [True, False, True, False]
    examples = [Example(Doc(nlp.vocab, words=words), Doc(nlp.vocab, words=words, sent_starts=starts))]
    train(nlp, examples, steps=40)
    assert [token.is_sent_start for token in nlp(Doc(nlp.vocab, words=words))] == starts


def test_doc_spans_ignore_sentences():
    assert bounds(doc_spans(), words(5, (0, 2)), words(0)) == [[(0, 5)], [(0, 0)]]


@pytest.mark.parametrize(
    ("length", "expected"),
    [(0, []), (3, [(0, 3)]), (4, [(0, 4)]), (5, [(0, 4), (3, 5)]), (8, [(0, 4), (3, 7), (6, 8)])],
)
def test_strided_spans(length: int, expected: list[tuple[int, int]]):
    assert bounds(strided_spans(4, 3), words(length)) == [expected]


@pytest.mark.parametrize(
    ("make", "setting"),
    [
        (lambda: sentence_spans(max_words=1), "max_words"),
        (lambda: punctuation_spans(max_words=1), "max_words"),
        (lambda: punctuation_spans([]), "punct_chars"),
        (lambda: strided_spans(0, 1), "window"),
        (lambda: strided_spans(4, 0), "stride"),
        (lambda: strided_spans(4, 5), "stride"),
    ],
)
def test_impossible_settings_are_refused_by_name(make, setting: str):
    with pytest.raises(ConfigError, match=f"E300.*{setting}"):
        make()


@pytest.mark.parametrize("name", ["sentence_spans", "punctuation_spans", "doc_spans", "strided_spans"])
def test_getters_are_registered_and_pickle(name: str):
    settings = {"window": 4, "stride": 2} if name == "strided_spans" else {}
    getter = registry.resolve({"getter": {"@misc": f"spacy_elmo.{name}.v1", **settings}})["getter"]
    assert bounds(pickle.loads(pickle.dumps(getter)), words(6)) == bounds(getter, words(6))


def test_sentences_are_read_independently(nlp: Language, mixed):
    doc = Doc(nlp.vocab, words=["a", "bank", "they", "paid"], sent_starts=[True, False, True, False])
    np.testing.assert_allclose(
        nlp(doc)._.elmo, np.concatenate([mixed(["a", "bank"]), mixed(["they", "paid"])]), atol=1e-6
    )


def test_sentencizer_before_the_pipe_is_heeded(make_nlp, mixed):
    nlp = make_nlp()
    nlp.add_pipe("sentencizer", first=True)
    expected = np.concatenate([mixed(["A", "bank", "."]), mixed(["They", "paid", "."])])
    np.testing.assert_allclose(nlp("A bank. They paid.")._.elmo, expected, atol=1e-6)


def test_strided_pipe_takes_each_token_from_its_best_window(make_nlp, mixed):
    nlp = make_nlp({"@misc": "spacy_elmo.strided_spans.v1", "window": 4, "stride": 2})
    text = "I sat on the bank there".split()
    expected = np.concatenate([mixed(text[:4])[:3], mixed(text[2:])[1:]])
    np.testing.assert_allclose(nlp(" ".join(text))._.elmo, expected, atol=1e-6)
