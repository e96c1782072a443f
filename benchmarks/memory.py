"""Peak memory of spacy-elmo's biLM for one very long sequence. See README.md."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from contestant_process import ContestantProcess, available_cores, warn_of_few_cores
from random_weights import DEFAULT_CACHE, SIZES, random_weights
from sentences import DEFAULT_TEXT, read_sentences


def main() -> None:
    options = _parse_arguments()
    warn_of_few_cores(options.threads)
    # No sentence is shorter than a word.
    sentences = read_sentences(options.text, options.words)
    sequence = [word for sentence in sentences for word in sentence][: options.words]
    if len(sequence) < options.words:
        sys.exit(f"The text has only {len(sequence)} words: ask for fewer --words.")
    options_path, weights_path = random_weights(options.size, options.cache)
    with ContestantProcess(sys.executable, "spacy_elmo_bilm", options.threads) as process:
        process.load(options_path, weights_path, [])
        loaded = process.peak_bytes()
        seconds = process.embed([[sequence]])
        peak = process.peak_bytes()
    cells, projection, _ = SIZES[options.size]
    # Three layers and their mix, float32.
    output = options.words * 4 * 2 * projection * 4
    print(f"{options.words} words in one sequence, {cells} cells, {projection} projection, {options.threads} threads")
    print(f"peak after loading {loaded / 1e6:8.0f} MB")
    print(f"peak after the run {peak / 1e6:8.0f} MB")
    print(f"  of it the result {output / 1e6:8.0f} MB (three layers and their mix)")
    print(f"{options.words / seconds:.0f} words/s, {seconds:.0f} s")


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--words", type=int, default=100_000, help="length of the sequence")
    parser.add_argument("--size", choices=sorted(SIZES), default="full", help="shape of the model")
    parser.add_argument("--threads", type=int, default=available_cores(), help="threads")
    parser.add_argument("--text", type=Path, default=DEFAULT_TEXT, help="one sentence a line, words apart by spaces")
    parser.add_argument("--cache", type=Path, default=DEFAULT_CACHE, help="where the random weights are kept")
    return parser.parse_args()


if __name__ == "__main__":
    main()
