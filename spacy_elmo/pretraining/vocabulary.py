"""The words that the softmax predicts, by falling frequency.

The character encoder needs no vocabulary: any word has a vector.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import warnings
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path

from ..errors import CorpusError, ElmoWarning, Errors, Warnings, shown
from ..lm.scoring import BEGIN, END, UNKNOWN, WordIds
from ..weights.bilm_vocabulary import PASSED_OVER, read_words, vocabulary_bytes
from ..weights.files import write_atomically
from .word_counts import WordCounts

SPECIALS = (BEGIN, END, UNKNOWN)
BEGIN_ID, END_ID, UNKNOWN_ID = range(3)

# Text may spell these, but a vocabulary file cannot hold them as words.
_NO_WORDS = frozenset((*SPECIALS, PASSED_OVER))

# In any other order half of the pairs are the wrong way round; in the order of other text, a quarter at most were seen.
_MOST_RISING = 0.4


class Vocabulary(WordIds):
    """Words and their ids: begin and end of sentence, unknown word, then words by falling frequency.

    words (Sequence[str]): The words, specials first.

    RAISES (CorpusError): E204 if the specials do not come first or a word occurs twice.
    """

    def __init__(self, words: Sequence[str]) -> None:
        words = list(words)
        if tuple(words[:3]) != SPECIALS or len(set(words)) != len(words):
            repeated = next((word for word, count in Counter(words).items() if count > 1), None)
            raise CorpusError(Errors.E204.format(specials=SPECIALS, found=words[:3], repeated=repeated))
        super().__init__(words)

    def __len__(self) -> int:
        return len(self.words)

    @classmethod
    def count(cls, sentences: Iterable[Sequence[str]], max_words: int, min_count: int = 1) -> Vocabulary:
        """Build the vocabulary of a text.

        sentences (Iterable): The text.
        max_words (int), min_count (int), RETURNS, RAISES: As for `of_counts`.
        """
        counts = WordCounts()
        counts.add(sentences)
        return cls.of_counts(counts, max_words, min_count)

    @classmethod
    def of_counts(cls, counts: WordCounts, max_words: int, min_count: int = 1) -> Vocabulary:
        """Build the vocabulary of a text whose words are counted.

        counts (WordCounts): How often each word occurs.
        max_words (int): Words to keep, specials included.
        min_count (int): Rarer words are left out.
        RETURNS (Vocabulary): Words by falling frequency; ties in the order of the words. Of no text, the specials.
        RAISES (CorpusError): E247 if no word of the text is left.
        """
        ranked = (word for word in counts.ranked(min_count) if word not in _NO_WORDS)
        words = list(islice(ranked, max(0, max_words - len(SPECIALS))))
        if counts.words and not words:
            found = {"types": len(counts.counts), "count": max(counts.counts.values(), default=0)}
            limits = {"min_count": min_count, "size": max_words, "specials": len(SPECIALS)}
            raise CorpusError(Errors.E247.format(**found, **limits))
        return cls([*SPECIALS, *words])

    def checksum(self) -> str:
        """RETURNS (str): Of the words and their order."""
        return hashlib.blake2b("\n".join(self.words).encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()

    def frequencies(self, counts: WordCounts) -> list[int]:
        """How often each word is predicted in a text.

        counts (WordCounts): The words of the text.
        RETURNS (list[int]): Of begin and end, a time a sentence; of the unknown word, words that are not here; of each word.
        """
        of_words = [counts.counts[word] for word in self.words[len(SPECIALS) :]]
        return [counts.sentences, counts.sentences, counts.words - sum(of_words), *of_words]

    def require_order(self, counts: WordCounts) -> None:
        """Warn (W210) where the words of a given vocabulary do not fall by frequency in a text.

        Each word is compared with the one at twice its rank: the frequencies of words so near to each other differ by a
        factor of about two, so that other text puts few of the pairs the other way round, and a vocabulary in the order
        of the alphabet half of them.

        counts (WordCounts): The words of the text.
        """
        found = [counts.counts[word] for word in self.words[len(SPECIALS) :]]
        pairs = [(found[rank - 1], found[2 * rank - 1]) for rank in range(1, len(found) // 2 + 1)]
        rising = sum(first < second for first, second in pairs)
        falling = sum(first > second for first, second in pairs)
        if rising > _MOST_RISING * (rising + falling):
            message = Warnings.W210.format(share=rising / (rising + falling))
            warnings.warn(message, ElmoWarning, stacklevel=2)

    def save(self, path: Path) -> None:
        """Write one word a line, gzip, the same bytes each time.

        RAISES (WeightsError): E141 for a word that would not be read back as it is. (OSError): If it cannot be written.
        """
        buffer = io.BytesIO()
        with gzip.GzipFile(fileobj=buffer, mode="wb", mtime=0) as file:
            file.write(vocabulary_bytes(self.words))
        write_atomically(path, buffer.getvalue())

    @classmethod
    def load(cls, path: Path) -> Vocabulary:
        """Read one word a line, plain or gzip: our own files and those of bilm-tf.

        RAISES (CorpusError): E204 if it is no vocabulary, E248 if a line is blank or has several words.
        RAISES (WeightsError): E120 if the file cannot be read, E140 if it is no such file.
        """
        words = read_words(path)
        for number, word in enumerate(words, 1):
            if word.split() != [word]:
                raise CorpusError(Errors.E248.format(path=path, number=number, word=shown(word)))
        return cls(words)
