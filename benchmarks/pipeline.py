"""Words per second of `spacy.blank("en")` with `nlp.add_pipe("elmo")` and, unless told otherwise, the embedded model. See README.md."""

from __future__ import annotations

import argparse
import statistics
import sys
from contextlib import ExitStack
from pathlib import Path

from contestant_process import ContestantProcess, warn_of_few_cores
from sentences import DEFAULT_TEXT, SentenceSource, read_sentences


def main() -> None:
    options = _parse_arguments()
    warn_of_few_cores(max(options.threads))
    source = SentenceSource(read_sentences(options.text, options.sentences * (options.rounds + 1)))
    with ExitStack() as stack:
        processes = [
            stack.enter_context(ContestantProcess(sys.executable, "spacy_elmo_pipeline", threads))
            for threads in options.threads
        ]
        warm_up = source.take(options.sentences)
        first_seconds = []
        for process in processes:
            loading = process.load(None, options.model, [])
            first_seconds.append(loading.import_seconds + loading.seconds + process.embed([warm_up]))
        speeds: list[list[float]] = [[] for _ in processes]
        for _ in range(options.rounds):
            sentences = source.take(options.sentences)
            words = sum(map(len, sentences))
            for process, measured in zip(processes, speeds, strict=True):
                measured.append(words / process.embed([sentences]))
        peaks = [process.peak_bytes() for process in processes]
    print("threads  words/s    min    max  to first result s  peak MB")
    for process, measured, first, peak in zip(processes, speeds, first_seconds, peaks, strict=True):
        line = f"{process.threads:7} {statistics.median(measured):8.0f} {min(measured):6.0f} {max(measured):6.0f}"
        print(f"{line} {first:18.1f} {peak / 1e6:8.0f}")


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2], help="thread counts, one process each")
    parser.add_argument("--model", type=Path, help="native weights directory in place of the embedded model")
    parser.add_argument("--rounds", type=int, default=5, help="rounds")
    parser.add_argument("--sentences", type=int, default=512, help="fresh sentences a round, 64 a batch")
    parser.add_argument("--text", type=Path, default=DEFAULT_TEXT, help="one sentence a line, words apart by spaces")
    return parser.parse_args()


if __name__ == "__main__":
    main()
