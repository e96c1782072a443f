"""The file of measurements of a run."""

from __future__ import annotations

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
