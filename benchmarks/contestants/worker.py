"""The process of one contestant: requests come in, one JSON object a line, and answers go out the same way.

Started as `PYTHON -m contestants.worker MODULE`, where MODULE is a file of this package with a function `load`. It runs in
the contestant's own environment, so it needs nothing but numpy, torch and what the contestant needs.
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import sys
import time
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import torch

from contestants.contract import Contestant


def main() -> None:
    """Serve requests until standard input ends."""
    answers = _claim_standard_output()
    contestant: Contestant | None = None
    for line in sys.stdin:
        request = json.loads(line)
        if contestant is None:
            answer: dict[str, Any] = {}
            contestant = _load(sys.argv[1], request, answer)
        else:
            answer = _serve(contestant, request)
        print(json.dumps(answer), file=answers, flush=True)


def _load(module: str, request: dict[str, Any], answer: dict[str, Any]) -> Contestant:
    torch.set_num_threads(request["threads"])
    started = time.perf_counter()
    loaded = importlib.import_module(f"contestants.{module}")
    imported = time.perf_counter()
    before = _forget_peak()
    contestant: Contestant = loaded.load(request["options"], request["weights"], request["vocabulary"])
    answer["import_seconds"] = imported - started
    answer["seconds"] = time.perf_counter() - imported
    answer["growth_bytes"] = _peak_bytes() - before
    return contestant


def _serve(contestant: Contestant, request: dict[str, Any]) -> dict[str, Any]:
    if request["do"] == "embed":
        started = time.perf_counter()
        for sentences in request["batches"]:
            contestant.embed(sentences)
        return {"seconds": time.perf_counter() - started}
    if request["do"] == "layers":
        np.save(request["path"], contestant.layers(request["sentences"]))
        return {}
    if request["do"] == "forget":
        contestant.forget()
        return {}
    if request["do"] == "peak":
        return {"bytes": _peak_bytes()}
    raise ValueError(f"Unknown request {request['do']!r}.")


def _peak_bytes() -> int:
    """RETURNS (int): The most memory that this process has had resident."""
    status = Path("/proc/self/status")
    if status.exists():  # `getrusage` would count the parent's memory from before the process started
        for line in status.read_text(encoding="utf8").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _forget_peak() -> int:
    """RETURNS (int): What is resident now, which is the peak from now on where the system allows that."""
    forgets = Path("/proc/self/clear_refs")
    if forgets.exists():
        forgets.write_text("5")
    return _peak_bytes()


def _claim_standard_output() -> TextIO:
    """Keep standard output for the answers; what libraries print goes to standard error."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf8")
    os.dup2(2, 1)
    return answers


if __name__ == "__main__":
    main()
