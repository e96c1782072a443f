"""Contestants from the outside: one process each, asked by turns."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import IO, Any, NamedTuple, Self, cast

HERE = Path(__file__).resolve().parent
# Worker threads of OpenMP go on spinning for a moment after their work: let them fall asleep before the next turn.
SETTLE_SECONDS = 0.3


def available_cores() -> int:
    """RETURNS (int): Cores that this process may use, which can be fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def warn_of_few_cores(threads: int) -> None:
    """Say so if threads would have to share cores: the figures then measure the waiting."""
    if threads > available_cores():
        print(f"Warning: {threads} threads, but only {available_cores()} core(s) to run on: do not trust what follows.")


class Loading(NamedTuple):
    """What loading took.

    import_seconds (float): To import the libraries. seconds (float): To load the model with them.
    growth_bytes (int): How far resident memory rose meanwhile, at its peak, above what it was after the imports.
    """

    import_seconds: float
    seconds: float
    growth_bytes: int


class ContestantProcess:
    """A running contestant. Use it as a context manager.

    python (str): The interpreter of the contestant's environment.
    module (str): Its file in `contestants/`.
    threads (int): Threads that torch may use.
    """

    def __init__(self, python: str, module: str, threads: int) -> None:
        self.module = module
        self.threads = threads
        paths = [str(HERE.parent), os.environ.get("PYTHONPATH", "")]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(path for path in paths if path),
            "OMP_NUM_THREADS": str(threads),
            "MKL_NUM_THREADS": str(threads),
        }
        self._process = subprocess.Popen(
            [python, "-m", "contestants.worker", module],
            cwd=HERE,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            encoding="utf8",
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None:
            self._process.kill()
        self._process.communicate()

    def load(self, options: Path | None, weights: Path | None, vocabulary: list[str]) -> Loading:
        """RETURNS (Loading): What importing and loading took."""
        paths = [None if path is None else str(path.resolve()) for path in (options, weights)]
        request = {"options": paths[0], "weights": paths[1], "vocabulary": vocabulary, "threads": self.threads}
        return Loading(**self._ask(**request))

    def embed(self, batches: list[list[list[str]]]) -> float:
        """RETURNS (float): Seconds for all batches, one call each."""
        time.sleep(SETTLE_SECONDS)
        return float(self._ask(do="embed", batches=batches)["seconds"])

    def write_layers(self, sentences: list[list[str]], path: Path) -> None:
        """Write the layers of one batch to an .npy file."""
        self._ask(do="layers", sentences=sentences, path=str(path))

    def forget(self) -> None:
        """Have it drop what it remembers of words."""
        self._ask(do="forget")

    def peak_bytes(self) -> int:
        """RETURNS (int): The most memory that was resident so far."""
        return int(self._ask(do="peak")["bytes"])

    def _ask(self, **request: Any) -> dict[str, Any]:
        try:
            print(json.dumps(request), file=self._process.stdin, flush=True)
        except BrokenPipeError:
            line = ""
        else:
            line = cast(IO[str], self._process.stdout).readline()
        if not line:
            raise RuntimeError(f"{self.module} ended early, with exit status {self._process.wait()}; see above.")
        answer: dict[str, Any] = json.loads(line)
        return answer
