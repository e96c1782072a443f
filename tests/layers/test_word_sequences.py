from __future__ import annotations

import numpy as np
import pytest
import spacy
from spacy.tokens import Doc

from spacy_elmo.layers.word_sequences import put_back, word_sequences


@pytest.fixture(scope="module")
def doc() -> Doc:
    return Doc(spacy.blank("en").vocab, words=["a", "b", "\n", "c", "d", "e"])


def test_words_are_taken_span_by_span_without_whitespace(doc: Doc):
    words, rows, tokens = word_sequences(doc, [doc[0:4], doc[4:6]])
    assert words == [["a", "b", "c"], ["d", "e"]]
    assert rows.tolist() == [0, 1, 2, 3, 4]
    assert tokens.tolist() == [0, 1, 3, 4, 5]


def test_token_in_two_spans_takes_the_one_with_more_context_on_the_shorter_side(doc: Doc):
    # a b _ c d (e): the words of the first span are rows 0-3 (a b c d), those of the second rows 4-7 (b c d e).
    words, rows, tokens = word_sequences(doc, [doc[0:5], doc[1:6]])
    assert words == [["a", "b", "c", "d"], ["b", "c", "d", "e"]]
    # b: 1 word before in the first, none in the second. c: 1 and 1, so the first. d: none after in the first, 1 in the
    # second.
    assert dict(zip(tokens.tolist(), rows.tolist())) == {0: 0, 1: 1, 3: 2, 4: 6, 5: 7}


def test_spans_out_of_order_reach_their_tokens(doc: Doc):
    words, rows, tokens = word_sequences(doc, [doc[4:6], doc[0:2]])
    assert words == [["d", "e"], ["a", "b"]]
    assert dict(zip(tokens.tolist(), rows.tolist())) == {4: 0, 5: 1, 0: 2, 1: 3}


def test_a_span_of_whitespace_is_no_sequence(doc: Doc):
    assert word_sequences(doc, [doc[2:3], doc[0:0]]).words == []


def test_values_come_back_to_their_tokens_and_the_rest_is_zero(doc: Doc):
    sequences = [word_sequences(doc, [doc[0:4]]), word_sequences(doc, [doc[4:6]])]
    values = np.arange(1, 6, dtype=np.float32)[:, None]
    first, second = put_back(values, sequences, [6, 6], np)
    assert first.ravel().tolist() == [1, 2, 0, 3, 0, 0]
    assert second.ravel().tolist() == [0, 0, 0, 0, 4, 5]


def test_no_array_shares_memory_with_the_batch(doc: Doc):
    part = Doc(doc.vocab, words=["a", "b"])
    sequences = [word_sequences(part, [part[:]]) for _ in range(2)]
    values = np.arange(4, dtype=np.float32)[:, None]
    arrays = put_back(values, sequences, [2, 2], np)
    assert [array.ravel().tolist() for array in arrays] == [[0, 1], [2, 3]]
    assert not any(np.shares_memory(array, values) for array in arrays)
