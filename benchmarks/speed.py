"""Words per second of spacy-elmo beside AllenNLP on the same weights and sentences. See README.md."""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from contestant_process import ContestantProcess, available_cores, warn_of_few_cores
from random_weights import DEFAULT_CACHE, SIZES, random_weights
from sentences import DEFAULT_TEXT, SentenceSource, in_batches, read_sentences

# Absolute, and relative to the value: float32 cannot do better on a sum over 4096 cells.
TOLERANCE = 1e-5
SENTENCES_COMPARED = 32


@dataclass(frozen=True)
class Contestant:
    """Who takes part.

    name (str): In the tables.
    module (str): File in `contestants/`.
    is_peer (bool): Runs in the environment of `--peer-python`.
    words (str): What it may remember of words when a round begins. "met": what it met in earlier rounds, as in use.
        "none": nothing. "all": the round's own sentences were embedded just before.
    """

    name: str
    module: str
    is_peer: bool
    words: Literal["met", "none", "all"] = "met"


YARDSTICK = Contestant("AllenNLP", "allennlp_elmo", is_peer=True)
CONTESTANTS = (
    Contestant("spacy-elmo", "spacy_elmo_bilm", is_peer=False),
    Contestant("spacy-elmo cold", "spacy_elmo_bilm", is_peer=False, words="none"),
    Contestant("spacy-elmo warm", "spacy_elmo_bilm", is_peer=False, words="all"),
    YARDSTICK,
    Contestant("AllenNLP vocab_to_cache", "allennlp_vocabulary_cache", is_peer=True),
)


@dataclass
class Run:
    """A contestant at work, and what was measured of it.

    words_per_second (dict): For each batch size one number a round.
    """

    contestant: Contestant
    process: ContestantProcess
    load_seconds: float = 0.0
    peak_bytes: int = 0
    words_per_second: dict[int, list[float]] = field(default_factory=dict)


def main() -> None:
    options = _parse_arguments()
    warn_of_few_cores(options.threads)
    wanted = options.warm_up + options.rounds * options.sentences * len(options.batch) + SENTENCES_COMPARED
    sentences = read_sentences(options.text, wanted)
    vocabulary = sorted({word for sentence in sentences for word in sentence})
    source = SentenceSource(sentences)
    options_path, weights_path = random_weights(options.size, options.cache)
    contestants = [c for c in CONTESTANTS if options.peer_python or not c.is_peer]
    if not options.peer_python:
        print("No --peer-python given: spacy-elmo runs alone, without a yardstick.")
    with ExitStack() as stack:
        runs = []
        for contestant in contestants:
            python = options.peer_python if contestant.is_peer else sys.executable
            process = stack.enter_context(ContestantProcess(python, contestant.module, options.threads))
            run = Run(contestant, process)
            loading = process.load(options_path, weights_path, vocabulary)
            run.load_seconds = loading.import_seconds + loading.seconds
            runs.append(run)
        difference = _compare_vectors(runs, source.take(SENTENCES_COMPARED))
        warm_up = source.take(options.warm_up)
        for batch_size in options.batch:
            _measure(runs, batch_size, options, source, warm_up)
            _print_table(runs, batch_size)
        for run in runs:
            run.peak_bytes = run.process.peak_bytes()
    _print_loading(runs)
    if options.json:
        _write_json(runs, options, difference)


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer-python", help="interpreter of the environment that AllenNLP is installed in")
    parser.add_argument("--size", choices=sorted(SIZES), default="full", help="shape of the model")
    parser.add_argument("--threads", type=int, default=available_cores(), help="threads of each contestant")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 32, 64], help="sentences a call")
    parser.add_argument("--rounds", type=int, default=5, help="rounds for each batch size")
    parser.add_argument("--sentences", type=int, default=64, help="fresh sentences a round")
    parser.add_argument("--warm-up", type=int, default=32, help="sentences embedded, untimed, before each batch size")
    parser.add_argument("--text", type=Path, default=DEFAULT_TEXT, help="one sentence a line, words apart by spaces")
    parser.add_argument("--cache", type=Path, default=DEFAULT_CACHE, help="where the random weights are kept")
    parser.add_argument("--json", type=Path, help="write all measurements to this file")
    return parser.parse_args()


def _compare_vectors(runs: list[Run], sentences: list[list[str]]) -> dict[str, float]:
    """Largest difference to the yardstick over all layers; ends the program if a contestant is beyond the tolerance."""
    if not any(run.contestant is YARDSTICK for run in runs):
        return {}
    layers = {}
    with tempfile.TemporaryDirectory() as directory:
        for run in runs:
            path = Path(directory) / "layers.npy"
            run.process.write_layers(sentences, path)
            layers[run.contestant.name] = np.load(path)
    expected = layers.pop(YARDSTICK.name)
    print(f"Vectors: {expected.shape} (words, layers, width), mean size {np.abs(expected).mean():.2f}.")
    difference = {}
    for name, given in layers.items():
        if given.shape != expected.shape:
            sys.exit(f"{name} gives layers of shape {given.shape}, {YARDSTICK.name} {expected.shape}.")
        difference[name] = float(np.abs(given - expected).max())
        print(f"  {name} differs from {YARDSTICK.name} by at most {difference[name]:.1e}.")
        if not np.allclose(given, expected, rtol=TOLERANCE, atol=TOLERANCE):
            sys.exit(f"They do not compute the same (tolerance {TOLERANCE:.0e}), so there is nothing to time.")
    return difference


def _measure(
    runs: list[Run], batch_size: int, options: argparse.Namespace, source: SentenceSource, warm_up: list[list[str]]
) -> None:
    for run in runs:
        run.process.embed(in_batches(warm_up, batch_size))
        run.process.forget()
    for round_number in range(options.rounds):
        sentences = source.take(options.sentences)
        words = sum(map(len, sentences))
        batches = in_batches(sentences, batch_size)
        # Nobody always has the turn after the same neighbour.
        first = round_number % len(runs)
        for run in runs[first:] + runs[:first]:
            if run.contestant.words == "none":
                run.process.forget()
            elif run.contestant.words == "all":
                run.process.embed(batches)
            run.words_per_second.setdefault(batch_size, []).append(words / run.process.embed(batches))


def _print_table(runs: list[Run], batch_size: int) -> None:
    yardstick = next((run for run in runs if run.contestant is YARDSTICK), None)
    ratio_heading = "" if yardstick is None else "   ratio (min-max)"
    print(f"\nbatch {batch_size:<18} words/s    min    max{ratio_heading}")
    for run in runs:
        speeds = run.words_per_second[batch_size]
        line = f"{run.contestant.name:<24} {statistics.median(speeds):7.0f} {min(speeds):6.0f} {max(speeds):6.0f}"
        if yardstick is not None:
            ratios = _ratios(run, yardstick, batch_size)
            line += f"   {statistics.median(ratios):5.2f} ({min(ratios):.2f}-{max(ratios):.2f})"
        print(line)


def _ratios(run: Run, yardstick: Run, batch_size: int) -> list[float]:
    """Pair by pair: both figures come from the same sentences, moments apart."""
    pairs = zip(run.words_per_second[batch_size], yardstick.words_per_second[batch_size], strict=True)
    return [ours / theirs for ours, theirs in pairs]


def _print_loading(runs: list[Run]) -> None:
    print("\ncontestant              load s  peak MB")
    for run in runs:
        print(f"{run.contestant.name:<24} {run.load_seconds:5.1f} {run.peak_bytes / 1e6:8.0f}")


def _write_json(runs: list[Run], options: argparse.Namespace, difference: dict[str, float]) -> None:
    settings = {name: value for name, value in vars(options).items() if isinstance(value, (int, str, list))}
    settings.pop("peer_python", None)
    report: dict[str, Any] = {
        "machine": {
            "processor": _processor(),
            "cores": available_cores(),
            "python": platform.python_version(),
            "torch": torch.__version__,
            "cpu_capability": torch.backends.cpu.get_cpu_capability(),
            "load_average": os.getloadavg(),
        },
        "settings": settings,
        "max_difference": difference,
        "contestants": {
            run.contestant.name: {
                "load_seconds": run.load_seconds,
                "peak_bytes": run.peak_bytes,
                "words_per_second": run.words_per_second,
            }
            for run in runs
        },
    }
    options.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf8")


def _processor() -> str:
    information = Path("/proc/cpuinfo")
    if information.exists():
        for line in information.read_text(encoding="utf8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()


if __name__ == "__main__":
    main()
