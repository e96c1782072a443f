"""The joint objective: predict each word from its left and, independently, from its right.

The forward LM reads `<S> w1 … wn` and predicts `w1 … wn </S>`; the backward LM reads `</S> wn … w1` and predicts
`wn … w1 <S>`. Character encoder and softmax are shared (Peters et al. 2018, eq. 1–3). A sentence starts from the model's
initial state, as in use; a window of a stream from where the stream was.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ..lm.batching import Packing, pack
from ..lm.bilm import BiLM, BiLMState, Dropout
from ..lm.characters import BEGIN_SENTENCE, END_SENTENCE, BoundaryWord, Word
from ..lm.devices import to_device
from .batches import Window
from .vocabulary import Vocabulary

Score = Callable[[Tensor, Tensor], Tensor]
"""Hidden states, (places, projection), and word ids, (places,), on the CPU: log-probabilities, (places,)."""


class Batch(NamedTuple):
    """Text ready for a device, in the order of its packing.

    words (list): Distinct words, boundaries included.
    read (Tensor): int64, (2 directions, places): what is read, as rows of `words`.
    predicted (Tensor): int64, (2 directions, places): what is predicted, as ids of the vocabulary; it stays on the CPU, see
        `OutputHead`.
    packing (Packing): Layout of the sentences or windows.
    n_words (int): Words of the text that each direction predicts, without boundaries.
    """

    words: list[Word]
    read: Tensor
    predicted: Tensor
    packing: Packing
    n_words: int

    @property
    def places(self) -> int:
        """What each direction predicts, boundaries included."""
        return self.read.shape[1]

    def to(self, device: torch.device) -> Batch:
        """RETURNS (Batch): The same, with what is read on a device."""
        return self._replace(read=to_device(self.read, device), packing=self.packing.to(device))


def prepare_sentences(sentences: Sequence[Sequence[str]], vocabulary: Vocabulary) -> Batch:
    """Turn sentences into the indices that a training step needs.

    sentences (Sequence): At least one sentence.
    RETURNS (Batch): The batch, of n + 1 places for n words.
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
    of_left, of_right = torch.tensor(left), torch.tensor(right)
    read = torch.stack([of_left[packing.forward], of_right[packing.backward]])
    predicted = torch.stack([of_right[packing.forward], of_left[packing.backward]])
    return Batch(list(index), read, ids[predicted], packing, len(left) - len(sentences))


def prepare_windows(windows: Sequence[Window], vocabulary: Vocabulary) -> Batch:
    """Turn windows of streams into the indices that a training step needs.

    windows (Sequence): At least one window, all of one length.
    RETURNS (Batch): The batch; row k is stream k.
    """
    index: dict[Word, int] = {}
    of_parts = []
    for words in zip(*windows):
        of_parts.append(torch.tensor([index.setdefault(word, len(index)) for window in words for word in window]))
    forward_read, forward_predicted, backward_read, backward_predicted = of_parts
    ids = torch.tensor([vocabulary.id_of(word) for word in index])
    packing = pack([len(window.forward_read) for window in windows])
    # Both directions are in reading order already.
    read = torch.stack([forward_read, backward_read])[:, packing.forward]
    predicted = torch.stack([forward_predicted, backward_predicted])[:, packing.forward]
    n_words = sum(not isinstance(word, BoundaryWord) for window in windows for word in window.forward_predicted)
    return Batch(list(index), read, ids[predicted], packing, n_words)


def log_probabilities(
    bilm: BiLM, score: Score, batch: Batch, state: BiLMState | None = None, dropout: Dropout | None = None
) -> tuple[Tensor, BiLMState]:
    """Log-probability of each word and of the boundary that ends its sentence, in each direction.

    bilm (BiLM): The model.
    score (Callable): The softmax over the vocabulary; called once for each direction.
    batch (Batch): Brought to the device of the model.
    state (BiLMState | None): Where each row starts; the initial state of the model by default.
    dropout (Callable | None): Applied to the input of each LSTM layer and to the input of the softmax.
    RETURNS (tuple[Tensor, BiLMState]): (2 directions, places), in nats, in the order of the packing; and where each row
        of the state ended.
    """
    vectors = bilm.encode_words(batch.words)
    packing = batch.packing
    if state is None:
        state = bilm.initial_state().repeat(len(packing.order))
    scores, ended = [], []
    for direction, stack in enumerate((bilm.forward_lm, bilm.backward_lm)):
        begin = state.of_direction(direction, packing.order)
        layers = list(stack.run(vectors, batch.read[direction], packing, begin, dropout))
        top = layers[-1][0]
        scores.append(score(top if dropout is None else dropout(top, packing), batch.predicted[direction]))
        ended.append([end for _, end in layers])
    cell = torch.stack([torch.stack([state.cell for state in layers]) for layers in ended])
    hidden = torch.stack([torch.stack([state.hidden for state in layers]) for layers in ended])
    return torch.stack(scores), BiLMState(cell, hidden)
