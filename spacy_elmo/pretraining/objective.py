"""The joint objective: predict each word from its left and, independently, from its right.

The forward LM reads `<S> w1 … wn` and predicts `w1 … wn </S>`; the backward LM reads `</S> wn … w1` and predicts
`wn … w1 <S>`. Character encoder and softmax are shared (Peters et al. 2018, eq. 1–3). Every sentence starts from the
model's initial state, as in use.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ..lm.batching import Packing, pack
from ..lm.bilm import BiLM, Dropout
from ..lm.characters import BEGIN_SENTENCE, END_SENTENCE, Word
from ..lm.softmax import OutputHead
from .vocabulary import Vocabulary


class Batch(NamedTuple):
    """A batch of sentences, ready for a device.

    words (list): Distinct words, boundaries included.
    word_ids (Tensor): int64, (distinct words,): their ids in the vocabulary.
    left (Tensor): int64, (places,): `<S> w1 … wn` of each sentence, as rows of `words`.
    right (Tensor): int64, (places,): `w1 … wn </S>` of each sentence.
    packing (Packing): Layout of the sentences, each of n + 1 places.
    """

    words: list[Word]
    word_ids: Tensor
    left: Tensor
    right: Tensor
    packing: Packing


def prepare_batch(sentences: Sequence[Sequence[str]], vocabulary: Vocabulary, device: torch.device) -> Batch:
    """Turn sentences into the indices that a training step needs.

    sentences (Sequence): At least one sentence.
    RETURNS (Batch): The batch on the device.
    """
    index: dict[Word, int] = {BEGIN_SENTENCE: 0, END_SENTENCE: 1}
    left: list[int] = []
    right: list[int] = []
    for sentence in sentences:
        rows = [index.setdefault(word, len(index)) for word in sentence]
        left += [0, *rows]
        right += [*rows, 1]
    ids = torch.tensor([vocabulary.id_of(word) for word in index])
    packing = pack([len(sentence) + 1 for sentence in sentences])
    words_left, words_right = torch.tensor(left).to(device), torch.tensor(right).to(device)
    return Batch(list(index), ids.to(device), words_left, words_right, packing.to(device))


def log_probabilities(bilm: BiLM, head: OutputHead, batch: Batch, dropout: Dropout | None = None) -> Tensor:
    """Log-probability of each word and of the boundary that ends its sentence, in each direction.

    bilm (BiLM): The model.
    head (OutputHead): The softmax over the vocabulary.
    batch (Batch): From `prepare_batch`.
    dropout (Callable | None): Applied to the input of each LSTM layer and to the input of the softmax.
    RETURNS (Tensor): (2 directions, places), in nats, in the order of the packing.
    """
    vectors = bilm.encode_words(batch.words)
    packing = batch.packing
    sentences = len(packing.order)
    state = bilm.initial_state().repeat(sentences)
    rows = torch.arange(sentences, device=vectors.device)
    directions = (
        (bilm.forward_lm, packing.forward, batch.left, batch.right),
        (bilm.backward_lm, packing.backward, batch.right, batch.left),
    )
    hidden, targets = [], []
    for direction, (stack, places, read, predicted) in enumerate(directions):
        begin = state.of_direction(direction, rows)
        for outputs, _ in stack.run(vectors, read[places], packing, begin, dropout):
            top = outputs
        hidden.append(top if dropout is None else dropout(top))
        targets.append(batch.word_ids[predicted[places]])
    scores: Tensor = head(torch.cat(hidden), torch.cat(targets))
    return scores.view(2, -1)
