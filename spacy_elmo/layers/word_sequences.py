"""Docs cut into sequences of words for the language model, and vectors of words put back to their tokens."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from spacy.attrs import IS_SPACE
from spacy.tokens import Doc, Span

_Ints = np.ndarray


class WordSequences(NamedTuple):
    """The sequences of one Doc.

    words (list[list[str]]): Words of each sequence.
    rows (ndarray): int64, (n,): which of the Doc's words, counted through the sequences, gives a token its vector.
    tokens (ndarray): int64, (n,): the tokens that get a vector, ascending.
    """

    words: list[list[str]]
    rows: _Ints
    tokens: _Ints


def word_sequences(doc: Doc, spans: Iterable[Span]) -> WordSequences:
    """Take a Doc's words, span by span.

    Whitespace tokens are no words. A token in several spans takes its vector from the span where it has most words on
    its shorter side; of equals, from the first.

    doc (Doc): The Doc.
    spans (Iterable[Span]): Its spans, which may overlap or leave tokens out.
    RETURNS (WordSequences): The sequences, and what belongs to which token.
    """
    texts = [token.text for token in doc]
    is_word = doc.to_array(IS_SPACE) == 0 if texts else np.zeros(0, dtype=bool)
    words, tokens = [], []
    for span in spans:
        inside = np.flatnonzero(is_word[span.start : span.end]) + span.start
        if inside.size:
            words.append([texts[index] for index in inside.tolist()])
            tokens.append(inside)
    if not words:
        return WordSequences([], np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))
    token = np.concatenate(tokens)
    if (token[1:] > token[:-1]).all():
        # In order and one after another, as sentences are: each token has one word.
        return WordSequences(words, np.arange(token.size), token)
    positions = [np.arange(inside.size) for inside in tokens]
    context = np.concatenate([np.minimum(position, position[::-1]) for position in positions])
    # Sorted by token and then by falling context, the first entry of each token is the one to take.
    order = np.lexsort((-context, token))
    rows = order[np.diff(token[order], prepend=-1) > 0]
    return WordSequences(words, rows, token[rows])


def put_back(values: Any, sequences: Sequence[WordSequences], lengths: Sequence[int], xp: Any) -> list[Any]:
    """Give each token the values of its word.

    values (ndarray): (words of all sequences, …), one Doc after another.
    sequences (Sequence[WordSequences]): The sequences of each Doc.
    lengths (Sequence[int]): Tokens of each Doc.
    xp (module): numpy or cupy, where the values are.
    RETURNS (list[ndarray]): (tokens, …) for each Doc; zeros for tokens that are no words or in no sequence. No array is
        a view of a batch, so that a Doc kept does not keep its neighbours.
    """
    arrays = []
    start = 0
    for (words, rows, tokens), length in zip(sequences, lengths):
        n_words = sum(map(len, words))
        is_one_to_one = len(rows) == n_words == length and bool((rows == np.arange(length)).all())
        if is_one_to_one and n_words == len(values):
            # This Doc is the whole batch: its memory is its own already, and may be large.
            arrays.append(values)
        elif is_one_to_one:
            arrays.append(values[start : start + length].copy())
        else:
            array = xp.zeros((length, *values.shape[1:]), dtype=values.dtype)
            array[xp.asarray(tokens)] = values[xp.asarray(rows + start)]
            arrays.append(array)
        start += n_words
    return arrays
