"""What a training run has written of itself, as far as it is there: a run may be at work, or have been killed."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from ..errors import Errors, TrainingError, detail_of

_LONGEST_LINE = 2**20
# A line of step 0 that has one of these is a measurement like those of later steps.
_MEASURED = ("loss", "perplexity_forward", "perplexity_joint")

Points = list[tuple[float, float]]


@dataclass
class RunRecord:
    """What is known of a run.

    name (str): Of its directory.
    series (dict[str, Points]): Each measurement at its steps, ascending; the last one where a step was measured twice.
    corpus (dict): What its text is, and what was met in it.
    config (dict[str, dict]): The parts of its config, and what else is known by parts, such as how well the vocabulary covers
        the text.
    environments (dict[float, dict]): Where it ran, by the step from which on.
    rollbacks (list): Steps at which it went back, and to which step.
    """

    name: str
    series: dict[str, Points] = field(default_factory=dict)
    corpus: dict[str, Any] = field(default_factory=dict)
    config: dict[str, dict[str, Any]] = field(default_factory=dict)
    environments: dict[float, dict[str, Any]] = field(default_factory=dict)
    rollbacks: list[tuple[float, float]] = field(default_factory=list)

    def points(self, name: str) -> Points:
        """RETURNS (Points): A measurement; none if it was not made."""
        return self.series.get(name, [])

    def last(self, name: str) -> float | None:
        """RETURNS (float | None): The last value of a measurement, if it was made."""
        points = self.points(name)
        return points[-1][1] if points else None

    def words_per_second(self) -> Points:
        """RETURNS (Points): As logged, else from the words and seconds of lines one after another."""
        if logged := self.points("words_per_second"):
            return logged
        words = dict(self.points("words"))
        timed = [(step, words[step], seconds) for step, seconds in self.points("seconds") if step in words]
        # A run of an old version began to count anew when it was resumed.
        return [
            (step, (after - before) / (seconds - start))
            for (_, before, start), (step, after, seconds) in pairwise(timed)
            if seconds > start and after >= before
        ]

    def seconds(self) -> float:
        """RETURNS (float): Of training, over all processes that went on with the run."""
        total, before = 0.0, 0.0
        for _, seconds in self.points("seconds"):
            total += seconds - before if seconds >= before else seconds
            before = seconds
        return total


def read_run(directory: Path) -> RunRecord:
    """Read what a run has written. What is not whole is passed over.

    directory (Path): The directory of the run.
    RETURNS (RunRecord): What is there.
    RAISES (TrainingError): E460 if there is no metrics.jsonl that can be read.
    """
    from ..pretraining.checkpoint import newest_progress
    from ..pretraining.run_directory import CHECKPOINTS, METRICS_FILE

    record = RunRecord(directory.resolve().name or str(directory))
    found: dict[str, dict[float, float]] = {}
    rollbacks: dict[float, float] = {}
    for line in _lines(directory / METRICS_FILE):
        step = _number(line.get("step"))
        if step is None or step < 0:
            continue
        if isinstance(environment := line.pop("environment", None), dict):
            record.environments[step] = environment
        if step == 0 and not any(name in line for name in _MEASURED):
            _take_facts(record, line)
            continue
        back = _number(line.pop("rolled_back_to", None))
        if back is not None:
            rollbacks[step] = back
        for name, value in line.items():
            measured = _number(value)
            if measured is not None and name != "step":
                found.setdefault(name, {})[step] = measured
    record.series = {name: sorted(points.items()) for name, points in found.items()}
    record.rollbacks = sorted(rollbacks.items())
    _take_progress(record, newest_progress(directory / CHECKPOINTS) or {})
    if "biLM" not in record.config:  # there are no checkpoints where only the weights were kept
        _take_config_of_weights(record, directory)
    return record


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    try:
        with open(path, "rb") as file:
            while raw := file.readline(_LONGEST_LINE):
                try:
                    values = json.loads(raw)
                except (ValueError, RecursionError):
                    continue
                if isinstance(values, dict):
                    yield values
    except OSError as error:
        raise TrainingError(Errors.E460.format(path=path, detail=detail_of(error))) from error


def _take_facts(record: RunRecord, line: dict[str, Any]) -> None:
    """Lines of step 0 tell of the text, or how the run is to go since that is the fastest way here."""
    facts = record.corpus if "sentences" in line else record.config.setdefault("chosen", {})
    for name, value in line.items():
        if isinstance(value, dict):
            record.config.setdefault(name, {}).update(value)
        elif name != "step":
            facts[name] = value


def _take_progress(record: RunRecord, progress: dict[str, Any]) -> None:
    for name, title in (("config", "biLM"), ("settings", "training"), ("chosen", "chosen")):
        if isinstance(progress.get(name), dict):
            record.config.setdefault(title, {}).update(progress[name])
    if isinstance(progress.get("corpus"), dict):
        record.corpus |= progress["corpus"]


def _take_config_of_weights(record: RunRecord, directory: Path) -> None:
    from ..weights.files import read_json
    from ..weights.native import CONFIG_FILE

    with suppress(OSError, ValueError, RecursionError):
        config = read_json(directory / CONFIG_FILE)
        if isinstance(config, dict) and isinstance(config.get("bilm"), dict):
            record.config["biLM"] = config["bilm"]


def _number(value: object) -> float | None:
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None
