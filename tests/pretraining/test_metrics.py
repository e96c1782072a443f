"""The file of measurements of a run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from spacy_elmo.pretraining.metrics import Metrics


@pytest.mark.parametrize("end", ["", "\n", '\n{"step": 3, "lo', '\n{"step": 3}\n'])
def test_what_was_whole_is_kept_and_added_to_however_the_file_ends(tmp_path: Path, end: str) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"step": 2}' + end)
    metrics = Metrics(path)
    metrics.cut(2)
    metrics.append(step=4)
    assert path.read_text() == '{"step": 1}\n{"step": 2}\n{"step": 4}\n' and metrics.lines == 3


def test_where_a_run_goes_on_is_noted_where_it_is_another_place(tmp_path: Path) -> None:
    metrics = Metrics(tmp_path / "metrics.jsonl")
    metrics.append(step=0, environment={"cores": 2})
    for step, cores in ((5, 2), (7, 4), (9, 4), (11, 2)):
        metrics.append_environment(step, {"cores": cores})
    lines = [json.loads(line) for line in metrics.path.read_text().splitlines()]
    assert [(line["step"], line["environment"]["cores"]) for line in lines] == [(0, 2), (7, 4), (11, 2)]
    assert metrics.lines == 3
