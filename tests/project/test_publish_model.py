"""What is published of a run says of itself what is true of its weights."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pytest

from spacy_elmo.pretraining import held_out
from spacy_elmo.pretraining.evaluate import Perplexity
from tests.pretraining.small_runs import trained, write_corpus
from tests.project.test_project import load_script

publish_model = load_script("publish_model")


def test_the_progress_is_that_of_the_best_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    rising = count(10.0)
    monkeypatch.setattr(held_out, "perplexity", lambda *arguments: Perplexity(*[next(rising)] * 3, 9))
    run = trained(tmp_path / "run", write_corpus(tmp_path / "text"))
    plateau = run.progress.plateau
    *_, progress = publish_model.load_run(tmp_path / "run")
    assert progress["step"] == plateau.best_step == 10
    (tmp_path / "run" / "checkpoints" / "best.safetensors").unlink()
    with pytest.warns(match="W200"), pytest.raises(SystemExit, match=f"step {plateau.best_step}"):
        publish_model.load_run(tmp_path / "run")


def test_a_run_that_is_not_finished(tmp_path: Path):
    with pytest.raises(Exception, match="ELMO-E1"):
        publish_model.load_run(tmp_path)
