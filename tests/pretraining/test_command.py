"""What the training command says before it begins."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from spacy_elmo.pretraining.__main__ import main
from tests.pretraining.small_runs import CONFIG, SETTINGS, write_corpus


@pytest.fixture
def arguments(tmp_path: Path) -> list[str]:
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"bilm": asdict(CONFIG), "training": SETTINGS}))
    return [str(write_corpus(tmp_path / "text")), "--output", str(tmp_path / "run"), "--config", str(config)]


@pytest.mark.parametrize(("steps", "warns"), [("5", False), ("300", True)])
def test_a_rate_that_never_gets_up_is_warned_of(arguments, capsys, steps, warns):
    assert main([*arguments, "--warmup-steps", steps]) == 0
    assert ("W228" in capsys.readouterr().err) == warns


def test_resuming_where_there_is_no_run_is_told_of_and_where_there_is_one_it_is_not(arguments, capsys):
    begun = []
    for _ in range(2):
        assert main([*arguments, "--resume"]) == 0
        begun.append("no run to go on with" in capsys.readouterr().err)
    assert begun == [True, False]


def test_the_way_of_computing_is_named(arguments, capsys):
    assert main([*arguments, "--precision", "bfloat16"]) == 0
    assert "on cpu; bfloat16, LSTMs step by step" in capsys.readouterr().err
