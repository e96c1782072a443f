"""A pipeline that was saved, copied or pickled gives the same vectors, and needs its source no more."""

from __future__ import annotations

import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
import spacy
import torch
from spacy.language import Language

from spacy_elmo.errors import WeightsError
from spacy_elmo.weights.native import load_bilm, save_bilm
from tests.pipeline.round_trips import WAYS, Way, through_disk

TEXT = "I sat on the bank"


@pytest.fixture
def expected(nlp: Language) -> np.ndarray:
    return nlp(TEXT)._.elmo


@pytest.fixture
def orphan(source: Path, tmp_path: Path) -> Language:
    """A pipeline whose source is its own copy, which a test may delete."""
    shutil.copytree(source, tmp_path / "weights")
    nlp = spacy.blank("en")
    nlp.add_pipe("elmo", config={"model": {"source": str(tmp_path / "weights")}})
    return nlp


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("loaded", [False, True])
def test_vectors_are_the_same(orphan: Language, tmp_path: Path, expected: np.ndarray, way: Way, loaded: bool):
    if loaded:
        orphan(TEXT)
    np.testing.assert_allclose(way(orphan, tmp_path / "saved")(TEXT)._.elmo, expected, atol=1e-6)


@pytest.mark.parametrize("way", WAYS)
def test_source_is_needed_no_more(orphan: Language, tmp_path: Path, expected: np.ndarray, way: Way):
    orphan(TEXT)
    shutil.rmtree(tmp_path / "weights")
    again = way(way(orphan, tmp_path / "once"), tmp_path / "twice")
    np.testing.assert_allclose(again(TEXT)._.elmo, expected, atol=1e-6)


def test_width_of_a_loaded_pipeline_is_known_without_the_source(orphan: Language, tmp_path: Path):
    orphan.to_disk(tmp_path / "saved")
    shutil.rmtree(tmp_path / "weights")
    model = spacy.load(tmp_path / "saved").get_pipe("elmo").model
    assert (model.get_dim("nO"), model.get_dim("nL")) == (16, 3)


def test_other_weights_at_the_source_do_not_disturb_a_saved_pipeline(
    orphan: Language, tmp_path: Path, expected: np.ndarray
):
    orphan.to_disk(tmp_path / "saved")
    data = orphan.to_bytes()
    bilm = load_bilm(tmp_path / "weights")
    shutil.rmtree(tmp_path / "weights")
    other = type(bilm)(type(bilm.config)(**{**vars(bilm.config), "projection": 6, "n_layers": 1}))
    save_bilm(other, tmp_path / "weights")
    np.testing.assert_allclose(spacy.load(tmp_path / "saved")(TEXT)._.elmo, expected, atol=1e-6)
    fresh = spacy.util.load_model_from_config(orphan.config, auto_fill=True)
    assert fresh.get_pipe("elmo").model.get_dim("nO") == 12
    np.testing.assert_allclose(fresh.from_bytes(data)(TEXT)._.elmo, expected, atol=1e-6)


def test_saved_weights_are_a_native_directory(nlp: Language, tmp_path: Path, mixed):
    nlp.to_disk(tmp_path / "saved")
    files = {path.name for path in (tmp_path / "saved" / "elmo" / "bilm").iterdir()}
    assert {"config.json", "model.safetensors"} <= files
    with torch.no_grad():
        layers = load_bilm(tmp_path / "saved" / "elmo" / "bilm")([TEXT.split()]).layers
    np.testing.assert_allclose(layers.mean(dim=1), mixed(TEXT.split()), atol=1e-6)


def test_weights_that_came_in_half_precision_are_saved_in_half_precision(source: Path, tmp_path: Path):
    save_bilm(load_bilm(source), tmp_path / "half", half=True)
    nlp = spacy.blank("en")
    nlp.add_pipe("elmo", config={"model": {"source": str(tmp_path / "half")}})
    again = through_disk(nlp, tmp_path / "saved")
    files = [tmp_path / "half" / "model.safetensors", tmp_path / "saved" / "elmo" / "bilm" / "model.safetensors"]
    assert files[0].stat().st_size == files[1].stat().st_size
    np.testing.assert_array_equal(again(TEXT)._.elmo, nlp(TEXT)._.elmo)


def test_settings_come_from_the_config_and_can_be_overridden(nlp: Language, tmp_path: Path):
    nlp.to_disk(tmp_path / "saved")
    loaded = spacy.load(tmp_path / "saved", config={"components": {"elmo": {"store": "layers", "layer_weights": 1}}})
    doc = loaded(TEXT)
    np.testing.assert_array_equal(doc._.elmo, doc._.elmo_layers[:, 1])


def test_saving_twice_gives_the_same_bytes(nlp: Language):
    elmo = nlp.get_pipe("elmo")
    assert elmo.to_bytes(exclude=["vocab"]) == elmo.to_bytes(exclude=["vocab"])


def test_component_alone_through_disk_and_bytes(nlp: Language, tmp_path: Path, expected: np.ndarray):
    elmo = nlp.get_pipe("elmo")
    elmo.to_disk(tmp_path / "elmo", exclude=["vocab"])
    for load in ("disk", "bytes"):
        other = spacy.blank("en")
        pipe = other.add_pipe("elmo", config={"model": {"source": str(tmp_path / "gone")}})
        if load == "disk":
            pipe.from_disk(tmp_path / "elmo", exclude=["vocab"])
        else:
            pipe.from_bytes(elmo.to_bytes(exclude=["vocab"]), exclude=["vocab"])
        np.testing.assert_allclose(other(TEXT)._.elmo, expected, atol=1e-6)


@pytest.mark.parametrize("missing", ["elmo/bilm/model.safetensors", "elmo"])
def test_saved_pipeline_without_its_weights_is_a_coded_error(nlp: Language, tmp_path: Path, missing: str):
    nlp.to_disk(tmp_path / "saved")
    (tmp_path / "saved" / missing).rename(tmp_path / "elsewhere")
    with pytest.raises(WeightsError, match="ELMO-E1"):
        spacy.load(tmp_path / "saved")


def test_pickled_pipeline_that_is_not_loaded_yet_holds_no_weights(orphan: Language):
    before = len(pickle.dumps(orphan.get_pipe("elmo").model))
    orphan(TEXT)
    assert before < 2000 < len(pickle.dumps(orphan.get_pipe("elmo").model))
