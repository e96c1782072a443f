"""The comparison over tasks, data and seeds: what is drawn, what is summed up, what is not run again."""

from __future__ import annotations

import importlib.util
import json
import shutil
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

PROJECT = Path(__file__).resolve().parents[2] / "project"


def load_script(name: str) -> ModuleType:
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, PROJECT / "scripts" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # one script imports the other
    spec.loader.exec_module(module)
    return module


convert, make_configs = load_script("convert"), load_script("make_configs")
curves = load_script("learning_curves")

ARGUMENTS = ["--tasks", "xpos", "--fractions", "0.1", "1", "--seeds", "0", "1"]


def result_of(run: Any, score: float) -> dict[str, Any]:
    return {**run._asdict(), "score": score, "dev_score": score, "scores": {}, "mixes": [], "training_seconds": 1.0}


def test_a_smaller_share_is_part_of_a_larger_one():
    items = list(range(1000))
    small, large = curves.sample(items, 0.02, seed=3), curves.sample(items, 0.1, seed=3)
    assert len(small) == 20 and set(small) < set(large) and small == sorted(small)
    assert small != curves.sample(items, 0.02, seed=4)
    assert curves.sample(items, 1.0, seed=3) == items and len(curves.sample(items, 0.0, seed=3)) == 10


def test_table_has_mean_spread_and_gain():
    scores = {"baseline": [0.80, 0.82], "elmo": [0.85, 0.87]}
    results = [
        result_of(curves.Run("xpos", system, 0.05, seed), score)
        for system, found in scores.items()
        for seed, score in enumerate(found)
    ]
    assert "| xpos (tag_acc) | 5 % | 81.00 ± 1.41 | 86.00 ± 1.41 (+5.00) |" in curves.summary(results)


def test_what_was_run_is_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    done = []

    def fail_at_the_sixth(run: Any, options: Any) -> dict[str, Any]:
        if len(done) == 5:
            raise KeyboardInterrupt
        done.append(run.name)
        return result_of(run, 0.5)

    monkeypatch.setattr(curves, "train_and_score", fail_at_the_sixth)
    arguments = [str(tmp_path / "data"), str(tmp_path / "out"), *ARGUMENTS]
    with pytest.raises(KeyboardInterrupt):
        curves.main(arguments)
    monkeypatch.setattr(curves, "train_and_score", lambda run, _: done.append(run.name) or result_of(run, 0.5))
    curves.main(arguments)
    assert len(done) == len(set(done)) == 8
    assert len(json.loads((tmp_path / "out" / "scores.json").read_text())) == 8
    assert (
        "| xpos (tag_acc) | 10 % | 50.00 ± 0.00 | 50.00 ± 0.00 (+0.00) |"
        in (tmp_path / "out" / "scores.md").read_text()
    )


@pytest.mark.slow
@pytest.mark.parametrize(("task", "directory"), [("ner-ewt", "ner_uner_ewt"), ("upos", "ud_english_ewt")])
def test_a_run(task: str, directory: str, source: Path, tmp_path: Path):
    shutil.copytree(PROJECT / "assets" / "labelled", tmp_path / "data" / directory)
    options = ["--max-steps", "4", "--eval-frequency", "2", "--elmo", str(source), "--seeds", "0", "--fractions", "0.1"]
    curves.main([str(tmp_path / "data"), str(tmp_path / "out"), "--tasks", task, *options])
    results = json.loads((tmp_path / "out" / "scores.json").read_text())
    assert {result["system"] for result in results} == {"baseline", "elmo"}
    assert all(0 <= result["score"] <= 1 and result["training_seconds"] > 0 for result in results)
    assert [len(result["mixes"]) for result in sorted(results, key=lambda result: result["system"])] == [0, 1]
