"""Short names of public models: every entry can be used, and nothing is claimed that is not known."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

import pytest

from spacy_elmo.weights.known_models import KnownModel, find_known_model, known_names


def known(name: str) -> KnownModel:
    model = find_known_model(name)
    assert model is not None
    return model


@pytest.mark.parametrize("name", known_names())
def test_every_entry_can_be_used(name: str) -> None:
    model = known(name)
    roles = {file.role for file in model.files}
    assert roles == {"archive"} or {"options", "weights"} <= roles or {"options", "checkpoint"} <= roles
    assert len({file.name for file in model.files}) == len(model.files)
    for file in model.files:
        assert re.fullmatch(r"[A-Za-z0-9._-]+", file.name)
        assert file.urls and all(urlsplit(url).scheme == "https" and urlsplit(url).path for url in file.urls)
        assert file.size is None or file.size > 0
        assert file.sha256 is None or re.fullmatch("[0-9a-f]{64}", file.sha256)
    assert model.about and (model.language is None or re.fullmatch("[a-z]{2,3}", model.language))


def test_names_are_told_apart() -> None:
    assert len(set(known_names())) == len(known_names())


@pytest.mark.parametrize(
    "name", ["ai2-small", "AI2-Small", "ai2-medium", "ai2-original", "ai2-original-5.5b", "pubmed"]
)
def test_models_of_ai2(name: str) -> None:
    assert known(name).language == "en"
    assert [file.name for file in known(name).files][:2] == ["options.json", "weights.hdf5"]


def test_softmax_of_the_original_is_a_file_of_its_own() -> None:
    assert {"softmax", "vocabulary"} <= {file.role for file in known("ai2-original").files}


def test_checkpoint_has_one_prefix() -> None:
    names = [file.name for file in known("ai2-original-checkpoint").files if file.role == "checkpoint"]
    assert names == ["model.ckpt-935588.index", "model.ckpt-935588.data-00000-of-00001"]


def test_any_number_of_the_nlpl_repository() -> None:
    model = known("nlpl:12345")
    assert (model.language, model.licence) == (None, None)
    assert model.files[0].urls[0] == "https://vectors.nlpl.eu/repository/20/12345.zip"


@pytest.mark.parametrize(("number", "language"), [(136, "ar"), (142, "de"), (164, "nl"), (170, "ru"), (179, "zh")])
def test_many_langs_have_their_numbers(number: int, language: str) -> None:
    by_number, by_language = known(f"nlpl:{number}"), known(f"many-langs:{language}")
    assert by_number == by_language
    assert by_number.language == language and "MIT" in (by_number.licence or "")


@pytest.mark.parametrize(
    "name", ["", "nlpl:", "nlpl:-1", "nlpl:1x", "nlpl:123456", "many-langs:xx", "small", "../ai2-small"]
)
def test_other_names_are_not_known(name: str) -> None:
    assert find_known_model(name) is None
