"""How likely each word of a text is to a biLM with its softmax: from its left and, independently, from its right."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from .batching import group_by_length, pack
from .bilm import BiLM, BiLMState
from .characters import BEGIN_SENTENCE, END_SENTENCE, BoundaryWord, Word
from .devices import to_device
from .softmax import OutputHead

BEGIN, END, UNKNOWN = "<S>", "</S>", "<UNK>"


class SentenceScores(NamedTuple):
    """Log-probabilities of one sentence, in nats.

    words (Tensor): float32, (2, words): of each word from its left, and from its right.
    boundaries (Tensor): float32, (2,): of the end of the sentence, from its left, and of its begin, from its right.
    """

    words: Tensor
    boundaries: Tensor


class WordIds:
    """The ids that a softmax has for words.

    words (Sequence[str]): In the order of the ids; `<S>`, `</S>` and `<UNK>` are among them.
    """

    def __init__(self, words: Sequence[str]) -> None:
        self.words = words
        # Of words that are there twice the more frequent one counts.
        self._ids = {word: index for index, word in reversed(list(enumerate(words)))}
        self._begin, self._end, self._unknown = (self._ids.pop(mark) for mark in (BEGIN, END, UNKNOWN))

    def id_of(self, word: Word) -> int:
        """RETURNS (int): The id; that of the unknown word for a word not there, and for text that spells a boundary."""
        if isinstance(word, BoundaryWord):
            return self._begin if word is BEGIN_SENTENCE else self._end
        return self._ids.get(word, self._unknown)

    def knows(self, word: str) -> bool:
        """RETURNS (bool): Whether the word is in the vocabulary."""
        return word in self._ids


def scoring_problem(head: OutputHead | None, words: Sequence[str] | None) -> str | None:
    """Say why words cannot be scored.

    head (OutputHead | None): The softmax of a model, if it has one.
    words (Sequence[str] | None): The vocabulary, if it is there.
    RETURNS (str | None): A clause; None if they can be.
    """
    if head is None:
        return "it comes without a softmax"
    if words is None:
        return "the vocabulary of its softmax is not there"
    missing = [mark for mark in (BEGIN, END, UNKNOWN) if mark not in words]
    return f"the vocabulary of its softmax has no {' and no '.join(missing)}" if missing else None


def word_log_probabilities(
    bilm: BiLM,
    head: OutputHead,
    id_of: Callable[[Word], int],
    sentences: Sequence[Sequence[str]],
    max_batch_words: int = 8192,
) -> list[SentenceScores]:
    """Score every word of sentences, and both boundaries of each, over the whole vocabulary and without dropout.

    A sentence has the same scores in any batch. It may have any length: a long one runs in windows that hand the state over,
    so that no context is lost. A word that the softmax does not know counts as the unknown word: its score is that of
    meeting any such word, though as context it is read by its characters.

    bilm (BiLM): The model.
    head (OutputHead): Its softmax; within `head.prepared()` it computes no more than it must.
    id_of (Callable): From a word or boundary to its id in the softmax, such as `WordIds(words).id_of`.
    sentences (Sequence): Words of each sentence; a sentence may be empty.
    max_batch_words (int): Words that run at the same time; bounds the memory beyond the scores, changes no result.
    RETURNS (list[SentenceScores]): Of each sentence, in order, on the CPU.
    """
    framed: list[list[Word]] = [[BEGIN_SENTENCE, *sentence, END_SENTENCE] for sentence in sentences]
    scores: list[list[Tensor]] = [[] for _ in framed]
    with torch.no_grad():
        start = bilm.initial_state()
        for group in group_by_length([len(words) - 1 for words in framed], max_batch_words):
            forward = [framed[index] for index in group]
            backward = [words[::-1] for words in forward]
            for direction, sequences in enumerate((forward, backward)):
                found = _score(bilm, head, id_of, sequences, direction, start, max_batch_words)
                for index, values in zip(group, found):
                    scores[index].append(values)
    return [_in_reading_order(forward, backward) for forward, backward in scores]


def _score(
    bilm: BiLM,
    head: OutputHead,
    id_of: Callable[[Word], int],
    sequences: Sequence[Sequence[Word]],
    direction: int,
    start: BiLMState,
    window: int,
) -> list[Tensor]:
    """Log-probability of each word but the first, in the order in which a direction reads."""
    stack = bilm.backward_lm if direction else bilm.forward_lm
    device = start.hidden.device
    state = start.repeat(len(sequences)).of_direction(direction, torch.arange(len(sequences), device=device))
    parts = []
    # Only a sequence that is alone in its group can be longer than a window.
    for first in range(0, max(map(len, sequences)) - 1, window):
        pieces = [words[first : first + window + 1] for words in sequences]
        index: dict[Word, int] = {}
        rows = [[index.setdefault(word, len(index)) for word in piece] for piece in pieces]
        read = torch.tensor([row for piece in rows for row in piece[:-1]])
        predicted = torch.tensor([row for piece in rows for row in piece[1:]])
        packing = pack([len(piece) - 1 for piece in pieces])
        places, ended = packing.forward, []
        read, packing = to_device(read[places], device), packing.to(device)
        for outputs, end in stack.run(bilm.encode_words(list(index)), read, packing, state):
            top = outputs
            ended.append(end)
        ids = torch.tensor([id_of(word) for word in index])
        values = head(top, ids[predicted[places]])
        parts.append(torch.empty_like(values).index_copy_(0, packing.forward, values))
        state = ended
    return list(torch.cat(parts).cpu().split([len(words) - 1 for words in sequences]))


def _in_reading_order(forward: Tensor, backward: Tensor) -> SentenceScores:
    backward = backward.flip(0)
    return SentenceScores(torch.stack([forward[:-1], backward[1:]]), torch.stack([forward[-1], backward[0]]))
