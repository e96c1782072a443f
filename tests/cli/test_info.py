"""`python -m spacy elmo info`: what it says of weights and of the device."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import pytest
import torch

from spacy_elmo.cli.info import describe
from spacy_elmo.pretraining.vocabulary import Vocabulary
from spacy_elmo.weights.formats import load_model, save_model
from spacy_elmo.weights.native import load_bilm, save_bilm
from tests.cli.conftest import Command


def test_facts_of_the_weights(source: Path, tmp_path: Path) -> None:
    directory = tmp_path / "weights"
    shutil.copytree(source, directory)
    Vocabulary(["<S>", "</S>", "<UNK>", "the"]).save(directory / "vocabulary.txt.gz")
    found = describe(directory)
    weights = found["Weights"]
    assert weights["parameters"] == sum(p.numel() for p in load_bilm(source).parameters())
    assert weights["sha256"] == hashlib.sha256((source / "model.safetensors").read_bytes()).hexdigest()
    assert weights["vocabulary"] == 4
    assert set(weights["files"]) == {"config.json", "model.safetensors", "vocabulary.txt.gz"}
    assert weights["stored as"] == "F32"
    assert found["Architecture"] == {"width": 16, "layers": 3, **load_bilm(source).config.to_dict()}


def test_half_precision_is_told(source: Path, tmp_path: Path) -> None:
    save_bilm(load_bilm(source), tmp_path / "half", half=True)
    assert describe(tmp_path / "half")["Weights"]["stored as"] == "F16"


def test_json(source: Path, spacy_command: Command) -> None:
    result = spacy_command("elmo", "info", source, "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["Architecture"]["initial_state"] == "zero"


def test_table(source: Path, spacy_command: Command) -> None:
    result = spacy_command("elmo", "info", source)
    assert result.exit_code == 0, result.output
    assert "sha256" in result.output and "initial_state" in result.output


def test_missing_weights_are_one_message(tmp_path: Path, spacy_command: Command) -> None:
    result = spacy_command("elmo", "info", tmp_path / "nowhere")
    assert result.exit_code == 1 and "[ELMO-E170]" in result.output and "Traceback" not in result.output


def test_directory_in_place_of_the_weights_is_told(source: Path, tmp_path: Path, spacy_command: Command) -> None:
    directory = tmp_path / "weights"
    (directory / "model.safetensors").mkdir(parents=True)
    shutil.copy(source / "config.json", directory)
    result = spacy_command("elmo", "info", directory)
    assert result.exit_code == 1
    assert f"[ELMO-E100] {directory} is no directory with a file 'model.safetensors'" in result.output


@pytest.mark.parametrize(
    "spacy_sees, torch_sees, reason",
    [(False, False, "torch sees no GPU"), (False, True, "CuPy"), (True, True, "prefer_gpu")],
)
def test_reason_of_the_device(
    source: Path, monkeypatch: pytest.MonkeyPatch, spacy_sees: bool, torch_sees: bool, reason: str
) -> None:
    monkeypatch.setattr("thinc.util.gpu_is_available", lambda: spacy_sees)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: torch_sees)
    device = describe(source)["Device"]
    assert device["device"] == "cpu" and reason in device["reason"]


def test_no_escape_codes_but_on_a_terminal(source: Path, spacy_command: Command) -> None:
    said = spacy_command("elmo", "info", source).output
    assert "\x1b" not in said and "= Weights =" in said


@pytest.mark.parametrize("names", [("config.json", "model.safetensors"), ("options.json", "weights.hdf5")])
def test_model_card_is_named(source: Path, tmp_path: Path, names: tuple[str, ...]) -> None:
    if "weights.hdf5" in names:
        pytest.importorskip("h5py")
    save_model(load_model(source), tmp_path / "weights", "native" if "config.json" in names else "bilm-hdf5")
    assert describe(tmp_path / "weights")["Weights"]["model card"] == str(tmp_path / "weights" / "README.md")
    (tmp_path / "weights" / "README.md").unlink()
    assert "model card" not in describe(tmp_path / "weights")["Weights"]


def test_model_card_of_the_embedded_model() -> None:
    card = Path(describe("en_elmo_sm")["Weights"]["model card"])
    assert "icence" in card.read_text(encoding="utf-8")
