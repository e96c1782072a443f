"""Sentences of natural length for the benchmarks: a text file with one sentence a line, words separated by spaces."""

from __future__ import annotations

import gzip
import sys
from pathlib import Path

DEFAULT_TEXT = Path(__file__).resolve().parents[2] / "shared" / "data" / "corpus_en" / "test.txt.gz"


def read_sentences(path: Path, limit: int) -> list[list[str]]:
    """Read the first sentences of a text file. Ends the program, with a message and without an error, if it is absent.

    path (Path): Text in UTF-8, plain or `.gz`.
    limit (int): Sentences wanted.
    RETURNS (list[list[str]]): At most `limit` sentences; empty lines are left out.
    """
    if not path.exists():
        print(f"Skipped: no text at {path}. Pass --text FILE (one sentence a line, words separated by spaces).")
        sys.exit(0)
    sentences: list[list[str]] = []
    with gzip.open(path, "rt", encoding="utf8") if path.suffix == ".gz" else path.open(encoding="utf8") as lines:
        for line in lines:
            if len(sentences) == limit:
                break
            if words := line.split():
                sentences.append(words)
    return sentences


class SentenceSource:
    """Hands out consecutive sentences, each once, so that no contestant has seen one before.

    sentences (list[list[str]]): All that may be handed out.
    """

    def __init__(self, sentences: list[list[str]]) -> None:
        self._sentences = sentences
        self._next = 0

    def take(self, number: int) -> list[list[str]]:
        """RETURNS (list[list[str]]): The next `number` sentences. Ends the program if the text has run out."""
        taken = self._sentences[self._next : self._next + number]
        if len(taken) < number:
            sys.exit(f"The text has only {len(self._sentences)} sentences: ask for fewer --rounds or --sentences.")
        self._next += number
        return taken


def in_batches(sentences: list[list[str]], size: int) -> list[list[list[str]]]:
    """RETURNS (list): The sentences in batches of `size`; the last may be smaller."""
    return [sentences[start : start + size] for start in range(0, len(sentences), size)]
