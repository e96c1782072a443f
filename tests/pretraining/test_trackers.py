"""Where a run reports to: what each tracker is told, and what happens where one is missing or fails."""

from __future__ import annotations

import importlib.util
import json
import math
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from spacy_elmo.errors import ElmoWarning, TrainingError
from spacy_elmo.pretraining import trackers
from spacy_elmo.pretraining.trackers import TRACKERS, build_trackers, check_trackers


class Recorder:
    """Stands for a class or function of a package: remembers how it was called."""

    calls: list[tuple[Any, ...]]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.calls = [("made", args, kwargs)]

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **kwargs: self.calls.append((name, args, kwargs))

    def called(self, name: str) -> list[tuple[Any, ...]]:
        return [args for called, args, _ in self.calls if called == name]


@pytest.fixture
def writers(monkeypatch: pytest.MonkeyPatch) -> list[Recorder]:
    """What stands for torch.utils.tensorboard.SummaryWriter, each time it is made."""
    made: list[Recorder] = []

    def make(*args: Any, **kwargs: Any) -> Recorder:
        made.append(Recorder(*args, **kwargs))
        return made[-1]

    module = ModuleType("torch.utils.tensorboard")
    module.SummaryWriter = make  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "tensorboard", ModuleType("tensorboard"))
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    return made


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[Recorder]:
    """What wandb.init gives, each time."""
    made: list[Recorder] = []

    def init(**kwargs: Any) -> Recorder:
        made.append(Recorder(**kwargs))
        return made[-1]

    module = ModuleType("wandb")
    module.init = init  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "wandb", module)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.delenv("WANDB_PROJECT", raising=False)
    return made


class Failing:
    """A tracker that cannot write."""

    def __init__(self, directory: Path, config: Mapping[str, Any], step: int) -> None:
        self.asked = 0

    def log(self, step: int, values: Mapping[str, float]) -> None:
        raise OSError("No space left on device")

    def close(self) -> None:
        raise RuntimeError("closed already")


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setitem(TRACKERS, "my.Failing.v1", Failing)
    yield "my.Failing.v1"


def test_tensorboard_gets_scalars_of_its_directory(writers: list[Recorder], tmp_path: Path) -> None:
    tracker = build_trackers(["tensorboard"], tmp_path, {"bilm": {"cells": 3}})
    tracker.log(20, {"step": 20, "loss": 4.5, "perplexity_forward:news": 90, "held_out": "abc", "rate": math.nan})
    tracker.close()
    (writer,) = writers
    assert writer.calls[0][1] == (str(tmp_path / "tensorboard"),)
    assert writer.called("add_scalar") == [("loss", 4.5, 20), ("perplexity_forward/news", 90.0, 20)]
    ((tag, text, step),) = writer.called("add_text")
    assert (tag, json.loads(text), step) == ("config", {"bilm": {"cells": 3}}, 0)
    assert writer.called("close") == [()]


def test_tensorboard_hides_what_a_resumed_run_measures_again(writers: list[Recorder], tmp_path: Path) -> None:
    build_trackers(["spacy_elmo.TensorBoard.v1"], tmp_path, {}, step=40)
    assert writers[0].calls[0][2] == {"purge_step": 41}


def test_wandb_is_offline_and_goes_on_under_its_id(runs: list[Recorder], tmp_path: Path) -> None:
    build_trackers(["wandb"], tmp_path, {"directory": tmp_path, "cells": 3})
    build_trackers(["wandb"], tmp_path, {}, step=20).log(40, {"loss": 1.5, "perplexity_joint:web": 2})
    build_trackers(["wandb"], tmp_path, {})
    begun, resumed, anew = (run.calls[0][2] for run in runs)
    assert (begun["mode"], begun["project"], begun["dir"]) == ("offline", "spacy-elmo", str(tmp_path))
    assert begun["config"] == {"directory": str(tmp_path), "cells": 3}
    assert begun["id"] == resumed["id"] != anew["id"]
    assert runs[1].called("log") == [({"loss": 1.5, "perplexity_joint/web": 2.0},)]


def test_wandb_is_online_where_the_environment_says_so(
    runs: list[Recorder], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.setenv("WANDB_PROJECT", "mine")
    build_trackers(["wandb"], tmp_path, {})
    assert (runs[0].calls[0][2]["mode"], runs[0].calls[0][2]["project"]) == ("online", "mine")


@pytest.mark.parametrize("name", ["tensorboard", "wandb"])
def test_package_that_is_not_installed(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(TrainingError, match=rf"E266.*{name}.*pip install 'spacy-elmo\[{name}\]'"):
        build_trackers([name], tmp_path, {})


def test_nothing_is_imported_unless_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trackers, "import_module", lambda name: pytest.fail(f"imported {name}"))
    nothing = build_trackers([], tmp_path, {})
    nothing.log(1, {"loss": 1.0})
    nothing.close()
    assert list(tmp_path.iterdir()) == []


def test_unknown_name(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="E265.*'tensorbored'.*wandb.*spacy_elmo.TensorBoard.v1"):
        check_trackers(["tensorboard", "tensorbored"])


def test_tracker_that_fails_is_left_out_with_a_warning(failing: str, writers: list[Recorder], tmp_path: Path) -> None:
    tracker = build_trackers([failing, "tensorboard"], tmp_path, {})
    with pytest.warns(ElmoWarning, match="W265.*my.Failing.v1.*No space left") as caught:
        tracker.log(1, {"loss": 1.0})
        tracker.log(2, {"loss": 2.0})
    assert len(caught) == 1
    assert writers[0].called("add_scalar") == [("loss", 1.0, 1), ("loss", 2.0, 2)]


def test_tracker_that_cannot_begin_ends_the_others(
    writers: list[Recorder], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(directory: Path, config: Mapping[str, Any], step: int) -> Any:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setitem(TRACKERS, "my.Refusing.v1", refuse)
    with pytest.raises(TrainingError, match="E267.*my.Refusing.v1.*Permission denied"):
        build_trackers(["tensorboard", "my.Refusing.v1"], tmp_path, {})
    assert writers[0].called("close") == [()]


def test_name_given_twice_is_one_tracker(writers: list[Recorder], tmp_path: Path) -> None:
    build_trackers(["tensorboard", "spacy_elmo.TensorBoard.v1"], tmp_path, {})
    assert len(writers) == 1


@pytest.mark.skipif(importlib.util.find_spec("tensorboard") is None, reason="tensorboard is not installed")
def test_event_files_of_the_real_tensorboard(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    tracker = build_trackers(["tensorboard"], tmp_path, {"cells": 3})
    for step in (10, 20, 30):
        tracker.log(step, {"loss": 1.0 / step})
    tracker.close()
    resumed = build_trackers(["tensorboard"], tmp_path, {}, step=20)
    resumed.log(30, {"loss": 7.0})
    resumed.close()
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    found = [(event.step, event.value) for event in events.Scalars("loss")]
    assert found == [(10, pytest.approx(0.1)), (20, pytest.approx(0.05)), (30, 7.0)]
