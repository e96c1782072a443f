"""`metrics.jsonl`: one JSON object a line for what a training run measured, each with its step."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import Errors, TrainingError
from ..weights.files import write_atomically
from .evaluate import Perplexity

_PREFIX = "perplexity_"


class Evaluation(NamedTuple):
    """step (int): Steps done then. held_out (str): Checksum of the text. perplexity (Perplexity): What was found."""

    step: int
    held_out: str
    perplexity: Perplexity

    def values(self, words: int, domains: Mapping[str, Perplexity]) -> dict[str, Any]:
        """What a line of metrics says of it.

        words (int): Words read by then.
        domains (Mapping): The perplexity of each domain by itself, where there are several.
        RETURNS (dict): Values by name.
        """
        found = {_PREFIX + name: value for name, value in self.perplexity._asdict().items()}
        for domain, perplexity in domains.items():
            found |= {f"{_PREFIX}{name}:{domain}": value for name, value in perplexity._asdict().items()}
        return {"step": self.step, "words": words, "held_out": self.held_out, **found}


class Metrics:
    """The measurements of a run.

    path (Path): The file; made with the first line.
    lines (int): How many there are.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines = 0

    def clear(self) -> None:
        """Delete the file, and begin anew.

        RAISES (OSError): If that cannot be done.
        """
        self.path.unlink(missing_ok=True)
        self.lines = 0

    def append(self, **values: Any) -> None:
        """Add a line.

        RAISES (TrainingError): E215 if it cannot be written.
        """
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with open(self.path, "a", encoding="utf-8") as file:
                file.write(json.dumps(values) + "\n")
            self.lines += 1
        except OSError as error:
            raise TrainingError(Errors.E215.format(path=self.path, detail=error)) from error

    def append_environment(self, step: int, environment: dict[str, Any]) -> None:
        """Add a line on where a run goes on, unless that is where it was before.

        step (int): Steps done. environment (dict): From `environment.environment`.
        RAISES (TrainingError): E215 if the file cannot be read or written.
        """
        known = (_parse(line).get("environment") for line in reversed(self._read().splitlines()))
        if next(filter(None, known), None) != environment:
            self.append(step=step, environment=environment)

    def cut(self, step: int, most: int | None = None) -> Evaluation | None:
        """Drop what was measured after a step, since a resumed run measures it again, and lines that are not whole.

        step (int): The last step to keep.
        most (int | None): How many lines to keep at most: what was measured of a step after it was saved is not in it.
        RETURNS (Evaluation | None): The last one kept.
        RAISES (TrainingError): E215 if the file cannot be read or written.
        """
        text = self._read()
        try:
            kept = [(line, values) for line in text.splitlines()[:most] if _step(values := _parse(line)) <= step]
            self.lines = len(kept)
            whole = "".join(f"{line}\n" for line, _ in kept)
            if whole != text:  # the last line may lack its end, too
                write_atomically(self.path, whole.encode("utf-8"))
        except OSError as error:
            raise TrainingError(Errors.E215.format(path=self.path, detail=error)) from error
        return next(filter(None, (_evaluation(values) for _, values in reversed(kept))), None)

    def evaluation_at(self, step: int) -> Evaluation | None:
        """RETURNS (Evaluation | None): The last one after so many steps.

        RAISES (TrainingError): E215 if the file cannot be read.
        """
        found = (_evaluation(_parse(line)) for line in reversed(self._read().splitlines()))
        return next((evaluation for evaluation in found if evaluation is not None and evaluation.step == step), None)

    def _read(self) -> str:
        try:
            return self.path.read_text(encoding="utf-8", errors="replace") if self.path.exists() else ""
        except OSError as error:
            raise TrainingError(Errors.E215.format(path=self.path, detail=error)) from error


def _evaluation(values: dict[str, Any]) -> Evaluation | None:
    names = [_PREFIX + name for name in Perplexity._fields]
    if not values.keys() >= {"step", "held_out", *names}:
        return None
    return Evaluation(values["step"], values["held_out"], Perplexity(*(values[name] for name in names)))


def _parse(line: str) -> dict[str, Any]:
    try:
        values = json.loads(line)
    except ValueError:
        return {}
    return values if isinstance(values, dict) else {}


def _step(values: dict[str, Any]) -> float:
    step = values.get("step")
    return step if isinstance(step, int) else float("inf")
