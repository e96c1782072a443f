"""`python -m spacy_elmo.pretraining`, and `python -m spacy elmo pretrain`, which is the same."""

from __future__ import annotations

import gzip
import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch

from spacy_elmo.errors import ConfigError
from spacy_elmo.lm.config import BiLMConfig
from spacy_elmo.pretraining.__main__ import build_parser, main, read_settings
from spacy_elmo.pretraining.loop import Run, TrainingSettings
from spacy_elmo.weights.native import load_bilm, load_head
from tests.cli.conftest import Command

TINY_BILM = ["--character-dim=4", "--filters=[[1, 4], [2, 8]]", "--max-characters=10", "--projection=8", "--cells=16"]
TINY = [*TINY_BILM, "--n-highway=1", "--batch-words=40", "--warmup-steps=2", "--min-count=1"]


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("the bank of the river\n\nthe bank lends money\n" * 20, encoding="utf-8")
    return path


def settings_of(*arguments: str) -> dict[str, Any]:
    return read_settings(build_parser("p").parse_args(["x", "--output", "y", *arguments]))


def test_weights_of_a_run(corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "run"
    assert main([str(corpus), "--output", str(output), "--held-out", str(corpus), *TINY]) == 0
    assert load_bilm(output)([["any", "words"]]).layers.shape == (2, 3, 16)
    assert load_head(output).settings["n_words"] == 9
    assert "forward" in (output / "README.md").read_text(encoding="utf-8")
    assert "20 empty lines left out" in capsys.readouterr().err


def test_spacy_command_trains_the_same_weights(corpus: Path, tmp_path: Path, spacy_command: Command) -> None:
    options = [str(corpus), *TINY, "--seed=3"]
    assert main([*options, "--output", str(tmp_path / "plain")]) == 0
    result = spacy_command("elmo", "pretrain", *options, "--output", tmp_path / "spacy")
    assert result.exit_code == 0, result.output
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("plain", "spacy")]
    assert weights[0] == weights[1]


def test_spacy_command_shows_the_options(spacy_command: Command) -> None:
    result = spacy_command("elmo", "pretrain", "--help")
    assert result.exit_code == 0
    assert "python -m spacy elmo pretrain" in result.output and "--warmup-steps" in result.output


def test_every_setting_has_an_option_that_says_what_it_does() -> None:
    actions = {action.dest: action for action in build_parser("p")._actions}
    for setting in [*fields(BiLMConfig), *fields(TrainingSettings)]:
        assert len(str(actions[setting.name].help).split(" (default: ")[0]) > 5, setting.name


def test_interrupt_saves_and_resume_ends_as_if_nothing_had_been(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    assert main([str(corpus), "--output", str(whole), *TINY]) == 0
    step = Run._train_step

    def interrupted(self: Run, sentences: list[list[str]]) -> tuple[torch.Tensor, float]:
        if self.step == 2:
            raise KeyboardInterrupt
        return step(self, sentences)

    monkeypatch.setattr(Run, "_train_step", interrupted)
    assert main([str(corpus), "--output", str(broken), *TINY]) == 130
    message = capsys.readouterr().err
    assert "step-00000002.safetensors is saved" in message and "--resume" in message
    monkeypatch.undo()
    assert main([str(corpus), "--output", str(broken), "--resume", *TINY]) == 0
    assert (broken / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()


def test_interrupt_before_the_first_step(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(self: Run, resume: bool) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Run, "begin", interrupted)
    assert main([str(corpus), "--output", str(tmp_path / "run"), *TINY]) == 130
    assert "no step was saved yet" in capsys.readouterr().err


def test_run_that_is_there_is_not_overwritten(corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [str(corpus), "--output", str(tmp_path / "run"), *TINY]
    assert main(arguments) == 0
    assert main(arguments) == 1
    assert "[ELMO-E212]" in capsys.readouterr().err


@pytest.mark.parametrize(
    "name, content, code, detail",
    [
        ("a.txt", b"ok\n\xff\xfe\n", "E202", "line 2"),
        ("a.txt.gz", gzip.compress(b"the bank\n" * 999)[:-20], "E201", "a.txt.gz"),
        ("a.txt", b"\n\n", "E203", "a.txt"),
        ("other.txt", b"", "E200", "a.txt"),
    ],
)
def test_corpus_that_cannot_be_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, content: bytes, code: str, detail: str
) -> None:
    (tmp_path / name).write_bytes(content)
    asked = tmp_path / (name if name != "other.txt" else "a.txt")
    assert main([str(asked), "--output", str(tmp_path / "run"), *TINY]) == 1
    message = capsys.readouterr().err
    assert f"[ELMO-{code}]" in message and detail in message


def test_empty_held_out_text(corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty.txt").touch()
    held_out = ["--held-out", str(tmp_path / "empty.txt")]
    assert main([str(corpus), "--output", str(tmp_path / "run"), *held_out, *TINY]) == 1
    assert "[ELMO-E203]" in capsys.readouterr().err


def test_output_that_is_a_file(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(corpus), "--output", str(corpus), *TINY]) == 1
    message = capsys.readouterr().err
    assert "[ELMO-E" in message and "cannot be written" in message


def test_missing_gpu(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main([str(corpus), "--output", str(tmp_path / "run"), "--gpu-id", "0", *TINY]) == 1
    assert "[ELMO-E412]" in capsys.readouterr().err


def test_options_go_before_the_config(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"bilm": {"cells": 7, "n_layers": 1}, "training": {"peak_rate": 1, "seed": 5}}))
    found = settings_of("--config", str(path), "--cells", "9", "--bf16", "--cell-clip", "none", "--no-skip-connections")
    assert found["bilm"] == BiLMConfig(cells=9, n_layers=1, cell_clip=None, skip_connections=False)
    assert found["training"] == TrainingSettings(peak_rate=1, seed=5, bfloat16=True)


def test_config_of_weights_may_be_used(source: Path) -> None:
    assert settings_of("--config", str(source / "config.json"))["bilm"] == load_bilm(source).config


@pytest.mark.parametrize(
    "content, code",
    [
        ("{", "E410"),
        ("[]", "E410"),
        ("{}", "E410"),
        ('{"bilm": 3}', "E410"),
        ('{"bilm": {}, "model": {}}', "E410"),
        ('{"bilm": {"cell": 3}}', "E002"),
        ('{"bilm": {"cells": 0}}', "E001"),
        ('{"training": {"sead": 3}}', "E411"),
        ('{"training": {"epochs": "3"}}', "E411"),
        ('{"training": {"epochs": true}}', "E411"),
        ('{"training": {"bfloat16": 1}}', "E411"),
    ],
)
def test_config_that_cannot_be(tmp_path: Path, content: str, code: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(content)
    with pytest.raises(ConfigError, match=code):
        settings_of("--config", str(path))
