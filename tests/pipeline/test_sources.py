"""Weights from any source, by the config of the model or by that of the initialization."""

from __future__ import annotations

import shutil
import socket
import zipfile
from pathlib import Path

import numpy as np
import pytest
import spacy
from spacy.language import Language
from thinc.api import Config

from spacy_elmo.errors import WeightsError
from spacy_elmo.weights.formats import load_model, save_model
from tests.pipeline.conftest import Expected, MakeNlp

TEXT = "we sat on the bank"
BLANK = """
[nlp]
lang = "en"
pipeline = ["elmo"]

[components]

[components.elmo]
factory = "elmo"

[initialize]

[initialize.components]

[initialize.components.elmo]
source = {source}
"""


@pytest.fixture(scope="module")
def pair(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model of `source` in the format of bilm-tf."""
    pytest.importorskip("h5py", reason="reading hdf5 needs h5py")
    directory = tmp_path_factory.mktemp("pair")
    save_model(load_model(source), directory, "bilm-hdf5")
    return directory


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("the network was asked")

    monkeypatch.setattr(socket.socket, "connect", refuse)


def with_source(source: object, **settings: object) -> Language:
    nlp = spacy.blank("en")
    nlp.add_pipe("elmo", config={"model": {"source": source, **settings}})
    return nlp


def test_directory_of_bilm_tf(pair: Path, mixed: Expected):
    nlp = with_source(str(pair), initial_state="zero")
    np.testing.assert_allclose(nlp(TEXT)._.elmo, mixed(TEXT.split()), atol=1e-6)


def test_imported_weights_start_from_the_canonical_state(pair: Path):
    vectors = {state: with_source(str(pair), initial_state=state)(TEXT)._.elmo for state in (None, "canonical", "zero")}
    np.testing.assert_array_equal(vectors[None], vectors["canonical"])
    assert np.abs(vectors[None] - vectors["zero"]).max() > 1e-4


@pytest.mark.parametrize("as_list", [True, False])
def test_pair_of_files(pair: Path, mixed: Expected, as_list: bool):
    files = [str(pair / "options.json"), str(pair / "weights.hdf5")]
    nlp = with_source(files if as_list else "::".join(files), initial_state="zero")
    np.testing.assert_allclose(nlp(TEXT)._.elmo, mixed(TEXT.split()), atol=1e-6)


def test_zip_file(pair: Path, mixed: Expected, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SPACY_ELMO_CACHE", str(tmp_path / "cache"))
    archive = tmp_path / "model.zip"
    with zipfile.ZipFile(archive, "w") as file:
        for path in (pair / "options.json", pair / "weights.hdf5"):
            file.write(path, path.name)
    nlp = with_source(str(archive), initial_state="zero")
    np.testing.assert_allclose(nlp(TEXT)._.elmo, mixed(TEXT.split()), atol=1e-6)


def test_name_that_must_be_fetched_is_an_error_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SPACY_ELMO_CACHE", str(tmp_path))
    monkeypatch.setenv("SPACY_ELMO_OFFLINE", "1")
    nlp = with_source("ai2-small")
    with pytest.raises(WeightsError, match="E160"):
        nlp(TEXT)


def test_weights_by_initialize(pair: Path, mixed: Expected):
    nlp = spacy.blank("en")
    elmo = nlp.add_pipe("elmo", config={"model": {"initial_state": "zero"}})
    elmo.initialize(list, nlp=nlp, source=str(pair))
    np.testing.assert_allclose(nlp(TEXT)._.elmo, mixed(TEXT.split()), atol=1e-6)


def test_pipeline_initialized_from_a_config_needs_the_source_no_more(pair: Path, tmp_path: Path):
    copy = tmp_path / "copy"
    shutil.copytree(pair, copy)
    config = Config().from_str(BLANK.format(source=f'"{copy}"'))
    nlp = spacy.util.load_model_from_config(config, auto_fill=True)
    nlp.initialize()
    expected = nlp(TEXT)._.elmo
    assert expected.shape == (5, 16)
    nlp.to_disk(tmp_path / "saved")
    shutil.rmtree(copy)
    loaded = spacy.load(tmp_path / "saved")
    np.testing.assert_array_equal(loaded(TEXT)._.elmo, expected)


def test_saved_pipeline_with_a_fetched_source_needs_no_network(make_nlp: MakeNlp, tmp_path: Path):
    nlp = make_nlp()
    nlp.config["components"]["elmo"]["model"]["source"] = "ai2-small"
    nlp.to_disk(tmp_path)
    np.testing.assert_array_equal(spacy.load(tmp_path)(TEXT)._.elmo, make_nlp()(TEXT)._.elmo)


def test_name_of_the_weights_is_saved(nlp: Language, tmp_path: Path):
    nlp.to_disk(tmp_path)
    loaded = spacy.load(tmp_path)
    assert loaded.get_pipe("elmo").cfg["fingerprint"] == nlp.get_pipe("elmo").fingerprint()


def test_source_that_is_none_is_a_coded_error(tmp_path: Path):
    nlp = with_source(str(tmp_path))
    with pytest.raises(WeightsError, match="E171"):
        nlp(TEXT)
