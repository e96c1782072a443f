"""Where a training run reports to besides its `metrics.jsonl`: TensorBoard, Weights & Biases, or what is added to TRACKERS.

A package is imported only if its tracker is asked for. A tracker that fails is left out from then on: what has been trained
for weeks does not end because a log cannot be written.
"""

from __future__ import annotations

import json
import math
import os
import secrets
import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from ..errors import ElmoWarning, Errors, TrainingError, Warnings, detail_of
from ..weights.files import write_atomically

TENSORBOARD_DIRECTORY = "tensorboard"
WANDB_ID_FILE = "wandb.id"


class Tracker(Protocol):
    """Takes measurements of a run."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Take what was measured after a step; what is measured of a part stands under "name:part"."""

    def close(self) -> None:
        """Write what is not yet written. Nothing is logged afterwards."""


class TensorBoardTracker:
    """Event files of TensorBoard, in a directory of their own: `tensorboard --logdir RUN`.

    directory (Path): Directory of the run.
    config (Mapping): What is known of the run, shown as text.
    step (int): Where the run begins or goes on; what an earlier process logged beyond it is hidden.
    RAISES (TrainingError): E266 if tensorboard is not installed.
    """

    def __init__(self, directory: Path, config: Mapping[str, Any], step: int = 0) -> None:
        # torch's module is there without tensorboard, but cannot be imported.
        _require("tensorboard", "tensorboard")
        module = _require("torch.utils.tensorboard", "tensorboard")
        place = str(directory / TENSORBOARD_DIRECTORY)
        self._writer = module.SummaryWriter(place, purge_step=step + 1 if step else None)
        if not step:
            indented = "".join(f"    {line}\n" for line in _json(config).splitlines())
            self._writer.add_text("config", indented, 0)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """See `Tracker`."""
        for name, value in values.items():
            # TensorBoard shows together what is the same before the stroke.
            self._writer.add_scalar(name.replace(":", "/"), value, step)
        self._writer.flush()

    def close(self) -> None:
        """See `Tracker`."""
        self._writer.close()


class WandbTracker:
    """Weights & Biases. Offline, in the directory of the run, unless WANDB_MODE says otherwise; WANDB_PROJECT and the other
    settings of the environment hold, too. A run that is resumed goes on under its id.

    directory (Path): Directory of the run.
    config (Mapping): What is known of the run.
    step (int): Where the run begins or goes on.
    RAISES (TrainingError): E266 if wandb is not installed.
    """

    def __init__(self, directory: Path, config: Mapping[str, Any], step: int = 0) -> None:
        wandb = _require("wandb", "wandb")
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT") or "spacy-elmo",
            mode=os.environ.get("WANDB_MODE") or "offline",
            id=_id_of(directory, fresh=not step),
            resume="allow",
            dir=str(directory),
            config=json.loads(_json(config)),
        )

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """See `Tracker`."""
        self._run.log({name.replace(":", "/"): value for name, value in values.items()}, step=step)

    def close(self) -> None:
        """See `Tracker`."""
        self._run.finish()


MakeTracker = Callable[[Path, Mapping[str, Any], int], Tracker]

TRACKERS: dict[str, MakeTracker] = {
    "spacy_elmo.TensorBoard.v1": TensorBoardTracker,
    "spacy_elmo.Wandb.v1": WandbTracker,
}
"""Trackers by name, as spaCy's registries have them. Add your own before the run begins."""

SHORT_NAMES = {"tensorboard": "spacy_elmo.TensorBoard.v1", "wandb": "spacy_elmo.Wandb.v1"}


class Trackers:
    """Some trackers as one, of which each may fail by itself.

    trackers (Mapping[str, Tracker]): By name.
    """

    def __init__(self, trackers: Mapping[str, Tracker]) -> None:
        self._trackers = dict(trackers)

    def log(self, step: int, values: Mapping[str, Any]) -> None:
        """Hand what was measured to each tracker; only numbers, and of these only those that are finite.

        step (int): Steps done.
        values (Mapping): Measurements by name, such as a line of `metrics.jsonl`.
        """
        numbers = {name: float(value) for name, value in values.items() if name != "step" and _is_finite(value)}
        if numbers:
            self._each(lambda tracker: tracker.log(step, numbers))

    def close(self) -> None:
        """Close each tracker."""
        self._each(lambda tracker: tracker.close())
        self._trackers.clear()

    def _each(self, call: Callable[[Tracker], None]) -> None:
        for name, tracker in list(self._trackers.items()):
            try:
                call(tracker)
            except Exception as error:  # the package of another may raise what it likes
                del self._trackers[name]
                warnings.warn(Warnings.W265.format(name=name, detail=detail_of(error)), ElmoWarning, stacklevel=4)


def build_trackers(names: Sequence[str], directory: Path, config: Mapping[str, Any], step: int = 0) -> Trackers:
    """Make the trackers of a run. Only the process that writes its files should.

    names (Sequence[str]): Names in TRACKERS, or "tensorboard" and "wandb".
    directory (Path): Directory of the run.
    config (Mapping): What is known of the run, in JSON's types.
    step (int): Where the run begins, 0, or goes on.
    RAISES (TrainingError): E265 for a name that there is none of, E266 if its package is not installed, E267 if it cannot begin.
    """
    made: dict[str, Tracker] = {}
    for name in dict.fromkeys(SHORT_NAMES.get(name, name) for name in check_trackers(names)):
        try:
            made[name] = TRACKERS[name](directory, config, step)
        except Exception as error:  # as above
            Trackers(made).close()
            if isinstance(error, TrainingError):
                raise
            raise TrainingError(Errors.E267.format(name=name, detail=detail_of(error))) from error
    return Trackers(made)


def check_trackers(names: Sequence[str]) -> Sequence[str]:
    """RETURNS (Sequence[str]): The names.

    RAISES (TrainingError): E265 for one that there is no tracker of.
    """
    for name in names:
        if name not in SHORT_NAMES and name not in TRACKERS:
            known = ", ".join([*SHORT_NAMES, *TRACKERS])
            raise TrainingError(Errors.E265.format(name=name, known=known))
    return names


def _require(module: str, package: str) -> Any:
    try:
        return import_module(module)
    except ImportError as error:
        raise TrainingError(Errors.E266.format(package=package, detail=detail_of(error))) from error


def _id_of(directory: Path, fresh: bool) -> str:
    """The id under which a run is known, made anew where the run is."""
    path = directory / WANDB_ID_FILE
    known = path.read_text(encoding="utf-8").strip() if path.is_file() and not fresh else ""
    if not known.isalnum():
        known = secrets.token_hex(4)
        write_atomically(path, f"{known}\n".encode())
    return known


def _json(config: Mapping[str, Any]) -> str:
    return json.dumps(config, indent=2, default=str)


def _is_finite(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
