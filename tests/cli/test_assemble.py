"""`python -m spacy elmo assemble`: a pipeline that works without the source of its weights."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import spacy
import torch

from spacy_elmo.cli.assemble import assemble
from spacy_elmo.weights import source as source_module
from spacy_elmo.weights.formats import load_model
from spacy_elmo.weights.known_models import KnownModel, RemoteFile
from tests.cli.conftest import Command
from tests.weights.hdf5_model import CONFIG, HDF5Model


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPACY_ELMO_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.mark.parametrize("n_layers", [1, 2, 3])
def test_pipeline_gives_the_vectors_of_the_model(tmp_path: Path, spacy_command: Command, n_layers: int) -> None:
    """Also where the model has other layers than the one inside spacy-elmo."""
    files = HDF5Model(tmp_path / "pair", replace(CONFIG, n_layers=n_layers))
    bilm = load_model(files.options).bilm
    result = spacy_command("elmo", "assemble", files.options, tmp_path / "pipeline", "--lang", "de")
    assert result.exit_code == 0, result.output
    assert "elmo" in result.output and "'canonical' was assumed" in result.output
    shutil.rmtree(files.options.parent)
    nlp = spacy.load(tmp_path / "pipeline", config={"components.elmo.store": "layers"})
    assert (nlp.lang, nlp.pipe_names) == ("de", ["elmo"])
    doc = nlp("Die Bank am Fluß.")
    with torch.inference_mode():
        expected = bilm([[token.text for token in doc]]).layers.numpy()
    np.testing.assert_allclose(doc._.elmo_layers, expected, atol=1e-6)
    np.testing.assert_allclose(doc._.elmo, expected.mean(axis=1), atol=1e-6)


def test_no_path_of_this_machine_is_kept(tmp_path: Path) -> None:
    assemble(HDF5Model(tmp_path / "pair").options, tmp_path / "pipeline", "en")
    for path in (tmp_path / "pipeline").rglob("*"):
        if path.is_file():
            assert str(tmp_path).encode() not in path.read_bytes(), path


def test_sentencizer_comes_first(tmp_path: Path, spacy_command: Command) -> None:
    files = HDF5Model(tmp_path / "pair")
    result = spacy_command("elmo", "assemble", files.weights, tmp_path / "p", "--lang", "xx", "--sentencizer")
    assert result.exit_code == 0, result.output
    nlp = spacy.load(tmp_path / "p")
    assert nlp.pipe_names == ["sentencizer", "elmo"]
    assert len(list(nlp("One. Two.").sents)) == 2


def test_what_is_known_of_the_weights_goes_along(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, spacy_command: Command
) -> None:
    files = HDF5Model(tmp_path / "pair")
    parts = (
        RemoteFile("options", "options.json", ("https://h/o",)),
        RemoteFile("weights", "weights.hdf5", ("https://h/w",)),
    )
    model = KnownModel("some-model", "someone", parts, "ru", "CC0")
    shutil.copytree(files.options.parent, cache / "models" / "some-model")
    monkeypatch.setattr(source_module, "find_known_model", {"some-model": model}.get)
    result = spacy_command("elmo", "assemble", "some-model", tmp_path / "p", "--offline")
    assert result.exit_code == 0, result.output
    meta = json.loads((tmp_path / "p" / "meta.json").read_text(encoding="utf-8"))
    assert (meta["lang"], meta["license"]) == ("ru", "CC0") and "some-model" in meta["description"]
    assert "someone" in (tmp_path / "p" / "README.md").read_text(encoding="utf-8")
    assert spacy.load(tmp_path / "p").meta["license"] == "CC0"


def test_language_that_is_not_known_has_to_be_given(tmp_path: Path, spacy_command: Command) -> None:
    files = HDF5Model(tmp_path / "pair")
    result = spacy_command("elmo", "assemble", files.options, tmp_path / "p")
    assert result.exit_code == 1 and "[ELMO-E431]" in result.output
    result = spacy_command("elmo", "assemble", files.options, tmp_path / "p", "--lang", "qqq")
    assert result.exit_code == 1 and "[ELMO-E415]" in result.output
    assert not (tmp_path / "p").exists()


def test_output_that_is_in_use(tmp_path: Path, spacy_command: Command) -> None:
    files = HDF5Model(tmp_path / "pair")
    result = spacy_command("elmo", "assemble", files.options, tmp_path / "pair", "--lang", "en")
    assert result.exit_code == 1 and "[ELMO-E430]" in result.output
