"""The words that the softmax predicts, by falling frequency.

The character encoder needs no vocabulary: any word has a vector.
"""

from __future__ import annotations

import gzip
import io
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from ..errors import CorpusError, Errors
from ..lm.characters import BEGIN_SENTENCE, BoundaryWord, Word
from ..weights.files import write_atomically
from .corpus import read_lines

BEGIN, END, UNKNOWN = "<S>", "</S>", "<UNK>"
SPECIALS = (BEGIN, END, UNKNOWN)
BEGIN_ID, END_ID, UNKNOWN_ID = range(3)

# Types counted before rare ones are dropped: bounds the memory on very large corpora.
_MAX_TYPES_COUNTED = 10_000_000


class Vocabulary:
    """Words and their ids: begin and end of sentence, unknown word, then words by falling frequency.

    words (Sequence[str]): The words, specials first.

    RAISES (CorpusError): E204 if the specials do not come first or a word occurs twice.
    """

    def __init__(self, words: Sequence[str]) -> None:
        self.words = list(words)
        self._ids: dict[str, int] = {word: index for index, word in enumerate(self.words)}
        if tuple(self.words[:3]) != SPECIALS or len(self._ids) != len(self.words):
            repeated = next((word for word, count in Counter(self.words).items() if count > 1), None)
            raise CorpusError(Errors.E204.format(specials=SPECIALS, found=self.words[:3], repeated=repeated))

    def __len__(self) -> int:
        return len(self.words)

    def id_of(self, word: Word) -> int:
        """RETURNS (int): The id; that of the unknown word for a word not there, and for text that spells a special."""
        if isinstance(word, BoundaryWord):
            return BEGIN_ID if word is BEGIN_SENTENCE else END_ID
        index = self._ids.get(word, UNKNOWN_ID)
        return index if index >= len(SPECIALS) else UNKNOWN_ID

    @classmethod
    def count(cls, sentences: Iterable[Sequence[str]], max_words: int, min_count: int = 1) -> Vocabulary:
        """Build the vocabulary of a text.

        sentences (Iterable): The text.
        max_words (int): Words to keep, specials included.
        min_count (int): Rarer words are left out.
        RETURNS (Vocabulary): Words by falling frequency; ties in the order of the words.
        """
        counts: Counter[str] = Counter()
        floor = 1
        for sentence in sentences:
            counts.update(sentence)
            while len(counts) > _MAX_TYPES_COUNTED:
                floor += 1
                counts = Counter({word: count for word, count in counts.items() if count >= floor})
        for special in SPECIALS:
            del counts[special]
        ranked = sorted((item for item in counts.items() if item[1] >= min_count), key=_by_falling_count)
        return cls([*SPECIALS, *(word for word, _ in ranked[: max(0, max_words - len(SPECIALS))])])

    def save(self, path: Path) -> None:
        """Write one word a line, gzip, the same bytes each time."""
        buffer = io.BytesIO()
        with gzip.GzipFile(fileobj=buffer, mode="wb", mtime=0) as file:
            file.write("".join(f"{word}\n" for word in self.words).encode("utf-8"))
        write_atomically(path, buffer.getvalue())

    @classmethod
    def load(cls, path: Path) -> Vocabulary:
        """Read one word a line, plain or gzip.

        RAISES (CorpusError): E201, E202 if the file cannot be read, E204 if it is no vocabulary.
        """
        return cls([line.rstrip("\r\n") for line in read_lines(path)])


def _by_falling_count(item: tuple[str, int]) -> tuple[int, str]:
    return -item[1], item[0]
