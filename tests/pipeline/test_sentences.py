from __future__ import annotations

import pickle

import numpy as np
import pytest
import spacy
from spacy import registry
from spacy.language import Language
from spacy.tokens import Doc

from spacy_elmo.errors import ConfigError
from spacy_elmo.pipeline.sentences import doc_spans, sentence_spans, strided_spans


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
        (lambda: strided_spans(0, 1), "window"),
        (lambda: strided_spans(4, 0), "stride"),
        (lambda: strided_spans(4, 5), "stride"),
    ],
)
def test_impossible_settings_are_refused_by_name(make, setting: str):
    with pytest.raises(ConfigError, match=f"E300.*{setting}"):
        make()


@pytest.mark.parametrize("name", ["sentence_spans", "doc_spans", "strided_spans"])
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
