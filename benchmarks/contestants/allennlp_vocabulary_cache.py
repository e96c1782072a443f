"""AllenNLP's `Elmo` with `vocab_to_cache`: word vectors are computed beforehand, for every word that will come.

That closed vocabulary must be known when the model is built. It is given all words of the run, which is the best case: a
batch with one other word would run the character encoder on the whole batch. Building counts as loading.
"""

from __future__ import annotations

import torch

from contestants.allennlp_elmo import AllenNLPElmo
from contestants.contract import Sentences

# AllenNLP's vocabularies keep row 0 for padding.
PADDING = "@@PADDING@@"


class AllenNLPVocabularyCache(AllenNLPElmo):
    """`Elmo` that looks word vectors up."""

    def __init__(self, options: str, weights: str, vocabulary: list[str]) -> None:
        super().__init__(options, weights, vocab_to_cache=[PADDING, *vocabulary])
        self._rows = {word: row for row, word in enumerate(vocabulary, 1)}

    def inputs(self, sentences: Sentences) -> list[torch.Tensor]:
        # AllenNLP takes the characters all the same, for the case that a word is not in the cache.
        rows = [torch.tensor([self._rows[word] for word in sentence]) for sentence in sentences]
        return [*super().inputs(sentences), torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)]


def load(options: str, weights: str, vocabulary: list[str]) -> AllenNLPVocabularyCache:
    """RETURNS (AllenNLPVocabularyCache): Ready to embed the words of the vocabulary."""
    return AllenNLPVocabularyCache(options, weights, vocabulary)
