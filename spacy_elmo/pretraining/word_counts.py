"""How often each word occurs in a text, in memory that does not grow with the text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice

# What is counted before rare words are dropped: together they bound the memory to some two gigabytes.
_MOST_TYPES = 10_000_000
_MOST_CHARACTERS = 500_000_000

_SENTENCES_AT_ONCE = 256


class WordCounts:
    """Counts of words. They are exact as long as the different words fit into memory, which is some ten million.

    Where they do not fit, the rarer half of them is dropped, as often as need be: a word that comes again is counted from
    one. So no count is ever too large, and none is too small by more than `undercount`; every word that occurs more often
    than that is there. What is counted of the whole text stays exact.

    max_characters (int): Positions of a word in the biLM, which sees two bytes less of it.
    """

    def __init__(self, max_characters: int = 50) -> None:
        self.counts: Counter[str] = Counter()
        self.words, self.sentences = 0, 0
        self.undercount = 0
        self.max_bytes = max_characters - 2
        self._dropped_long = 0
        self._types, self._characters = 0, 0

    def add(self, sentences: Iterable[Sequence[str]]) -> None:
        """Count the words of text.

        sentences (Iterable): The text.
        """
        sentences = iter(sentences)
        while some := list(islice(sentences, _SENTENCES_AT_ONCE)):
            self.sentences += len(some)
            self.words += sum(map(len, some))
            self.counts.update(chain.from_iterable(some))
            # A dict keeps the order in which its keys came, so that the new ones are the last.
            new = len(self.counts) - self._types
            self._characters += sum(map(len, islice(reversed(self.counts), new)))
            self._types += new
            if self._types > _MOST_TYPES or self._characters > _MOST_CHARACTERS:
                self._drop_rare()

    def ranked(self, min_count: int = 1) -> list[str]:
        """RETURNS (list[str]): The words that occur so often, by falling count; ties in the order of the words."""
        # Sorted twice: tuples to sort by would take more memory than the words.
        words = sorted(word for word, count in self.counts.items() if count >= min_count)
        words.sort(key=self.counts.__getitem__, reverse=True)
        return words

    def long_words(self) -> int:
        """RETURNS (int): Words, each as often as it occurs, that have more bytes than the biLM sees of a word."""
        return self._dropped_long + self._long(self.counts.items())

    def _long(self, counts: Iterable[tuple[str, int]]) -> int:
        least = self.max_bytes // 4  # bytes that a character has at most
        return sum(count for word, count in counts if len(word) > least and len(word.encode("utf-8")) > self.max_bytes)

    def _drop_rare(self) -> None:
        floor = 0
        while self._types > _MOST_TYPES // 2 or self._characters > _MOST_CHARACTERS // 2:
            floor = sorted(self.counts.values())[self._types // 2]
            self._dropped_long += self._long(self._up_to(floor))
            self.counts = Counter({word: count for word, count in self.counts.items() if count > floor})
            self._types = len(self.counts)
            self._characters = sum(map(len, self.counts))
        self.undercount += floor

    def _up_to(self, floor: int) -> Iterator[tuple[str, int]]:
        return (item for item in self.counts.items() if item[1] <= floor)
