"""Seconds and memory to load a model with spacy-elmo and with AllenNLP, and to convert it. See README.md."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
from contestant_process import ContestantProcess, Loading, available_cores, warn_of_few_cores
from random_weights import DEFAULT_CACHE, SIZES, random_weights

# Enough to see that all have loaded the same.
SENTENCES = ["The people who live here say so .".split(), "Élan vital , naïvement ?".split(), ["Yes"]]
TOLERANCE = 1e-5
NATIVE_DIRECTORY = "native"


@dataclass
class Contestant:
    """Who takes part, and what was measured of it.

    name (str): In the table. module (str): File in `contestants/`. is_peer (bool): Runs in the environment of
        `--peer-python`. from_native (bool): Loads what the first one has converted.
    """

    name: str
    module: str
    is_peer: bool = False
    from_native: bool = False
    loadings: list[Loading] = field(default_factory=list)


def main() -> None:
    options = _parse_arguments()
    warn_of_few_cores(options.threads)
    options_path, weights_path = random_weights(options.size, options.cache)
    native = weights_path.with_name(NATIVE_DIRECTORY)
    contestants = [
        Contestant("hdf5 to native", "spacy_elmo_convert"),
        Contestant("spacy-elmo native", "spacy_elmo_native", from_native=True),
        Contestant("spacy-elmo hdf5", "spacy_elmo_bilm"),
    ]
    if options.peer_python:
        contestants.append(Contestant("AllenNLP hdf5", "allennlp_elmo", is_peer=True))
    else:
        print("No --peer-python given: spacy-elmo runs alone, without a yardstick.")
    layers: dict[str, np.ndarray] = {}
    for round_number in range(options.rounds):
        # Nobody always has the turn after the same neighbour; but what is to be loaded must have been written once.
        first = round_number % len(contestants)
        for contestant in contestants[first:] + contestants[:first]:
            python = options.peer_python if contestant.is_peer else sys.executable
            with ContestantProcess(python, contestant.module, options.threads) as process:
                # Disks are not what is compared: the files are in the system's cache.
                _read(weights_path)
                paths = (None, native) if contestant.from_native else (options_path, weights_path)
                contestant.loadings.append(process.load(*paths, []))
                if round_number == 0:
                    layers[contestant.name] = _layers(process)
    _require_same(layers)
    size = weights_path.stat().st_size
    _print_table(contestants, size)
    if options.json:
        report = {"bytes": size, "threads": options.threads, "contestants": list(map(asdict, contestants))}
        report["load_average"] = os.getloadavg()
        options.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf8")


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer-python", help="interpreter of the environment that AllenNLP is installed in")
    parser.add_argument("--size", choices=sorted(SIZES), default="full", help="shape of the model")
    parser.add_argument("--threads", type=int, default=available_cores(), help="threads")
    parser.add_argument("--rounds", type=int, default=5, help="processes of each contestant")
    parser.add_argument("--cache", type=Path, default=DEFAULT_CACHE, help="where the random weights are kept")
    parser.add_argument("--json", type=Path, help="write all measurements to this file")
    return parser.parse_args()


def _read(path: Path) -> None:
    with open(path, "rb") as file:
        while file.read(1 << 24):
            pass


def _layers(process: ContestantProcess) -> np.ndarray:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "layers.npy"
        process.write_layers(SENTENCES, path)
        layers: np.ndarray = np.load(path)
    return layers


def _require_same(layers: dict[str, np.ndarray]) -> None:
    """End the program if they have not all loaded the same model."""
    expected = layers["spacy-elmo hdf5"]
    for name, given in layers.items():
        tolerance = 0.0 if name.startswith(("spacy-elmo", "hdf5")) else TOLERANCE
        if given.shape != expected.shape or not np.allclose(given, expected, rtol=tolerance, atol=tolerance):
            sys.exit(f"{name} does not give the vectors that spacy-elmo gives (tolerance {tolerance:g}).")


def _print_table(contestants: list[Contestant], size: int) -> None:
    yardstick = next((c.loadings for c in contestants if c.is_peer), None)
    print(
        f"Model: {size / 1e6:.0f} MB. Growth: peak of resident memory above that after the imports, and by that size."
    )
    print(f"{'':<18} import s  load s   (min-max)    growth MB  by size   times faster (min-max)")
    for contestant in contestants:
        loads = [loading.seconds for loading in contestant.loadings]
        imports = statistics.median(loading.import_seconds for loading in contestant.loadings)
        growth = max(loading.growth_bytes for loading in contestant.loadings)
        line = f"{contestant.name:<18} {imports:8.1f} {statistics.median(loads):7.2f} ({min(loads):5.2f}-{max(loads):5.2f})"
        line += f" {growth / 1e6:12.0f} {growth / size:8.2f}"
        if yardstick is not None:
            ratios = [theirs.seconds / ours for theirs, ours in zip(yardstick, loads, strict=True)]
            line += f" {statistics.median(ratios):14.1f} ({min(ratios):.1f}-{max(ratios):.1f})"
        print(line)


if __name__ == "__main__":
    main()
