"""Peak memory of reading a corpus as the trainer does, once as it is and once many times over. See README.md."""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path

from spacy_elmo.lm.config import BiLMConfig
from spacy_elmo.pretraining.corpus import Corpus, find_shards
from spacy_elmo.pretraining.feeding import read_batches
from spacy_elmo.pretraining.settings import TrainingSettings
from spacy_elmo.pretraining.vocabulary import Vocabulary
from spacy_elmo.pretraining.word_counts import WordCounts


def read_all(sources: list[str], copies: int) -> dict[str, float]:
    """Count the words of a corpus, then make every batch of an epoch ready.

    sources (list[str]): As for `pretrain`.
    copies (int): How many times over.
    RETURNS (dict): Words, batches, seconds and the peak of resident memory in MiB, of this process.
    """
    settings = TrainingSettings(parts=1)
    corpus = Corpus(find_shards(sources) * copies, settings.max_words)
    start = time.perf_counter()
    counts = WordCounts(BiLMConfig().max_characters)
    counts.add(corpus.sentences())
    counted = time.perf_counter()
    vocabulary = Vocabulary.of_counts(counts, settings.vocabulary_size, settings.min_count)
    words = counts.words
    del counts
    batches = sum(1 for _ in read_batches(corpus, settings, vocabulary, [0]))
    seconds = {"counting": counted - start, "reading": time.perf_counter() - counted}
    return {
        "words": words,
        "batches": batches,
        **seconds,
        "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sources", nargs="+", help="text, as for pretrain")
    parser.add_argument("--copies", type=int, default=29, help="how many times over the corpus is read the second time")
    parser.add_argument("--alone", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.alone:
        print(json.dumps(read_all(options.sources, options.copies)))
        return
    print(f"{'million words':>14} {'batches':>9} {'counting s':>11} {'reading s':>10} {'peak MiB':>9}")
    for copies in (1, options.copies):
        command = [sys.executable, str(Path(__file__).resolve()), *options.sources, "--alone", "--copies", str(copies)]
        found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        shown = f"{found['words'] / 1e6:14.1f} {found['batches']:9,} {found['counting']:11.0f} {found['reading']:10.0f}"
        print(f"{shown} {found['peak']:9.0f}", flush=True)


if __name__ == "__main__":
    main()
