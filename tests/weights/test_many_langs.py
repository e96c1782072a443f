"""Directories of ELMoForManyLangs, against a reading of them in plain numpy."""

from __future__ import annotations

import json
import random
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from spacy_elmo.errors import ConfigError, ElmoWarning, WeightsError
from spacy_elmo.lm.bilm import BiLM
from spacy_elmo.lm.characters import BEGIN_SENTENCE, END_SENTENCE
from spacy_elmo.weights import many_langs
from spacy_elmo.weights.many_langs import load_many_langs
from spacy_elmo.weights.native import bilm_from_bytes, bilm_to_bytes
from tests.weights.many_langs_model import (
    ARCHITECTURE,
    CHARACTERS,
    NAME,
    SENTENCES,
    WORDS,
    ManyLangsReading,
    changed,
    random_tensors,
    write_dictionary,
    write_model,
)

VARIANTS: dict[str, dict[str, Any]] = {
    "small": ARCHITECTURE,
    "tanh, one highway": changed("token_embedder", activation="tanh", n_highway=1),
    "no highways": changed("token_embedder", n_highway=0),
    "short words": changed("token_embedder", max_characters_per_token=7),
    "four layers, fewer cells": changed("encoder", n_layers=4, dim=3),
    "no clips": changed("encoder", cell_clip=None, proj_clip=0),
    "clips that bind": changed("encoder", cell_clip=0.4, proj_clip=0.2),
}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("many_langs") / "model")


@pytest.fixture
def model(written: Path, tmp_path: Path) -> Path:
    """A model of one's own, to be changed."""
    return shutil.copytree(written, tmp_path / "model")


def assert_close(bilm: BiLM, reading: ManyLangsReading) -> None:
    for sentence, layers in zip(SENTENCES, bilm(SENTENCES).split(), strict=True):
        assert layers.dtype == torch.float32
        np.testing.assert_allclose(layers.numpy(), reading.embed(sentence), rtol=0, atol=1e-5)


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize("variant", VARIANTS)
def test_all_layers_are_those_of_the_files(tmp_path: Path, variant: str, zipped: bool) -> None:
    write_model(tmp_path, VARIANTS[variant], zipped)
    assert_close(load_many_langs(tmp_path, initial_state="zero"), ManyLangsReading(tmp_path))


def test_clips_bind_in_their_variant(tmp_path: Path) -> None:
    """Or else the comparison above would say nothing about them."""
    layers = ManyLangsReading(write_model(tmp_path, VARIANTS["clips that bind"])).embed(SENTENCES[2])
    assert 0.05 < (np.abs(layers[:, 1]) == 0.2).mean() < 0.95


def test_boundaries_are_the_words_bos_and_eos(written: Path) -> None:
    bilm, reading = load_many_langs(written), ManyLangsReading(written)
    found = bilm.encode_words([BEGIN_SENTENCE, END_SENTENCE])
    expected = [reading.word_vector("<bos>"), reading.word_vector("<eos>")]
    np.testing.assert_allclose(found.numpy(), expected, rtol=0, atol=1e-5)
    assert not torch.allclose(bilm.encode_words(["<bos>", "<eos>"]), found, atol=0.01)


def test_it_is_frozen_and_starts_from_the_canonical_state(written: Path) -> None:
    bilm = load_many_langs(written)
    assert bilm.config.initial_state == "canonical"
    assert not bilm.training and not any(parameter.requires_grad for parameter in bilm.parameters())


def test_it_goes_on_in_the_native_format(written: Path) -> None:
    bilm = load_many_langs(written)
    found = bilm_from_bytes(bilm_to_bytes(bilm))
    assert found.config == bilm.config
    assert torch.equal(found(SENTENCES).layers, bilm(SENTENCES).layers)


def test_half_precision_and_parameters_are_read(model: Path) -> None:
    reading = ManyLangsReading(model)
    tokens, lstms = random_tensors(ARCHITECTURE)
    torch.save({name: torch.nn.Parameter(tensor) for name, tensor in tokens.items()}, model / "token_embedder.pkl")
    torch.save({name: tensor.double() for name, tensor in lstms.items()}, model / "encoder.pkl")
    assert_close(load_many_langs(model, initial_state="zero"), reading)
    torch.save({name: tensor.half() for name, tensor in lstms.items()}, model / "encoder.pkl")
    assert {parameter.dtype for parameter in load_many_langs(model).parameters()} == {torch.float32}


def test_an_unknown_initial_state_is_named(written: Path) -> None:
    with pytest.raises(ConfigError, match="E001.*initial_state"):
        load_many_langs(written, initial_state="warm")  # type: ignore[arg-type]


# The architecture.


def edit(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    settings = json.loads(path.read_text())
    change(settings)
    path.write_text(json.dumps(settings))


@pytest.mark.parametrize("named", [NAME, f"./{NAME}", f"../../{NAME}", f"/nowhere/{NAME}", f"C:\\models\\{NAME}"])
def test_the_architecture_is_the_file_of_its_name_beside_the_config(model: Path, named: str) -> None:
    (model.parent / NAME).write_text("{}")
    edit(model / "config.json", lambda settings: settings.update(config_path=named))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load_many_langs(model)


def test_the_known_architecture_stands_in_with_a_warning(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = load_many_langs(model).config
    monkeypatch.setattr(many_langs, "_KNOWN_ARCHITECTURE", ARCHITECTURE)
    (model / NAME).unlink()
    name = "cnn_50_100_512_4096_sample.json"
    edit(model / "config.json", lambda settings: settings.update(config_path=f"/author/{name}"))
    notes: list[str] = []
    with pytest.warns(ElmoWarning, match=f"W150.*{name}"):
        assert load_many_langs(model, notes=notes).config == expected
    assert len(notes) == 1 and name in notes[0]


def test_the_known_architecture_is_the_published_one(model: Path) -> None:
    (model / NAME).unlink()
    edit(model / "config.json", lambda settings: settings.update(config_path="cnn_50_100_512_4096_sample.json"))
    with pytest.warns(ElmoWarning, match="W150"), pytest.raises(WeightsError, match=r"E157.*\(12, 4\).*\(12, 100\)"):
        load_many_langs(model)


@pytest.mark.parametrize("named", ["other.json", "", "..", "/", "nul\0.json", "config.json/..", "x" * 10_000])
def test_an_architecture_that_is_nowhere(model: Path, named: str) -> None:
    edit(model / "config.json", lambda settings: settings.update(config_path=named))
    with pytest.raises(WeightsError, match="E152.*not beside it"):
        load_many_langs(model)


@pytest.mark.parametrize("content", ["", "{", "[]", "null", "[" * 100_000, "{}", '{"config_path": 3}', "\udcff"])
def test_a_config_that_is_none(model: Path, content: str) -> None:
    (model / "config.json").write_bytes(content.encode("utf-8", "surrogateescape"))
    with pytest.raises(WeightsError, match="E151.*config.json"):
        load_many_langs(model)


@pytest.mark.parametrize(
    ("section", "settings", "code"),
    [
        ("encoder", {"name": "lstm"}, "E153.*encoder.name.*'lstm'"),
        ("token_embedder", {"name": "lstm"}, "E153.*token_embedder.name.*'lstm'"),
        ("encoder", {"dim": 5}, "E153.*as many cells"),
        ("token_embedder", {"word_dim": 0}, "E153.*word_dim"),
        ("token_embedder", {"char_dim": 0}, "E153.*character_dim"),
        ("token_embedder", {"activation": "gelu"}, "E153.*activation"),
        ("token_embedder", {"filters": 7}, "E153.*filters"),
        ("token_embedder", {"n_highway": None}, "E153.*n_highway"),
        ("encoder", {"cell_clip": -1}, "E153.*cell_clip"),
        ("encoder", {"n_layers": 10**9}, "E153.*n_layers"),
        ("encoder", {"dim": 10**9}, "E153.*cells"),
        ("encoder", {"dim": 2**16}, "E157"),
        ("encoder", {"projection_dim": 2**16}, "E157"),
        ("encoder", {"n_layers": 1000}, "E157.*forward_layer_2"),
        ("encoder", {"n_layers": 1}, "E158.*forward_layer_1"),
        ("token_embedder", {"n_highway": 1}, "E158.*highways"),
        ("token_embedder", {"filters": [[1, 4], [2, 3], [3, 2], [1, 2**15]]}, "E157.*convolutions.3"),
    ],
)
def test_an_architecture_that_cannot_be_or_does_not_fit(
    model: Path, section: str, settings: dict[str, Any], code: str
) -> None:
    (model / NAME).write_text(json.dumps(changed(section, **settings)))
    with pytest.raises(WeightsError, match=code):
        load_many_langs(model)


@pytest.mark.parametrize("change", [{"encoder": 3}, {"token_embedder": None}])
def test_an_architecture_without_its_sections(model: Path, change: dict[str, Any]) -> None:
    edit(model / NAME, lambda settings: settings.update(change))
    with pytest.raises(WeightsError, match=f"E151.*{NAME}"):
        load_many_langs(model)


# Files.


@pytest.mark.parametrize("name", ["config.json", "word.dic", "char.dic", "token_embedder.pkl", "encoder.pkl"])
def test_a_missing_file(model: Path, name: str) -> None:
    (model / name).unlink()
    with pytest.raises(WeightsError, match=f"E150.*{name}"):
        load_many_langs(model)
    (model / name).mkdir()
    with pytest.raises(WeightsError, match=f"E150.*{name}"):
        load_many_langs(model)


def test_a_missing_directory(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="E150.*no such directory"):
        load_many_langs(tmp_path / "missing")


def test_files_too_large_to_be_what_they_should(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(many_langs, "_MOST_DICTIONARY_BYTES", 10)
    with pytest.raises(WeightsError, match=r"E150.*'word\.dic'.*more than 10 bytes"):
        load_many_langs(model)
    (model / "config.json").write_text(f'{{"config_path": "x"{" " * 2**20}}}')
    with pytest.raises(WeightsError, match=r"E151.*config\.json.*more than 1,048,576 bytes"):
        load_many_langs(model)


def test_a_softmax_beside_it_changes_nothing(model: Path) -> None:
    (model / "classifier.pkl").write_bytes(b"anything")
    load_many_langs(model)


# Dictionaries.


def test_lines_of_windows_are_read(model: Path) -> None:
    for name in ("word.dic", "char.dic"):
        path = model / name
        path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    bilm = load_many_langs(model)
    assert list(bilm.encoder.vocabularies["words"]) == WORDS
    assert list(bilm.encoder.vocabularies["characters"]) == CHARACTERS


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("cat\t12", "E154.*line 13.*'cat' was there before"),
        ("\t12", "E154.*line 13.*was there before"),
        ("dog\tfour", "E154.*line 13"),
        ("dog\t-1", "E154.*line 13"),
        ("dog\t\u0661\u0662", "E154.*line 13"),
        ("dog\t1\t2", "E154.*line 13"),
        ("", "E154.*line 13"),
        ("dog\t" + "9" * 5000, "E154.*line 13"),
        ("dog\t11", "E155.*word.dic.*13 entries"),
        ("dog\t13", "E155.*word.dic.*13 entries"),
        ("dog\t12", "E155.*E007.*words.*13.*12"),
    ],
)
def test_a_dictionary_that_cannot_be(model: Path, line: str, code: str) -> None:
    path = model / "word.dic"
    path.write_text(path.read_text(encoding="utf-8") + line + "\n", encoding="utf-8")
    with pytest.raises(WeightsError, match=code):
        load_many_langs(model)


@pytest.mark.parametrize(("name", "entries"), [("word.dic", WORDS), ("char.dic", CHARACTERS)])
def test_a_dictionary_without_a_mark(model: Path, name: str, entries: list[str]) -> None:
    write_dictionary(model / name, ["x" if entry == "<eos>" else entry for entry in entries])
    with pytest.raises(WeightsError, match="E155.*E009.*<eos>"):
        load_many_langs(model)


@pytest.mark.parametrize("data", [b"", b"\xff\t0\n", b"\0" * 100])
def test_a_dictionary_that_is_something_else(model: Path, data: bytes) -> None:
    (model / "char.dic").write_bytes(data)
    with pytest.raises(WeightsError, match="E154.*char.dic"):
        load_many_langs(model)


# Weights that do not fit; what is no weights at all is in test_state_dicts.py.


def edit_tensors(path: Path, change: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    tensors = torch.load(path, weights_only=True)
    change(tensors)
    torch.save(tensors, path)


@pytest.mark.parametrize("name", ["word_emb_layer.embedding.weight", "char_emb_layer.embedding.weight"])
@pytest.mark.parametrize("shape", [(), (0,), (3,), (0, 4), (11, 4), (12, 3), (2, 2, 2)])
def test_tables_of_other_shapes(model: Path, name: str, shape: tuple[int, ...]) -> None:
    edit_tensors(model / "token_embedder.pkl", lambda tensors: tensors.update({name: torch.ones(shape)}))
    with pytest.raises(WeightsError, match="E15[357]"):
        load_many_langs(model)


@pytest.mark.parametrize(
    ("name", "change", "code"),
    [
        ("encoder.pkl", lambda t: t.pop("forward_layer_0.state_linearity.bias"), "E157.*nothing"),
        ("token_embedder.pkl", lambda t: t.pop("word_emb_layer.embedding.weight"), "E157.*word_emb_layer"),
        ("encoder.pkl", lambda t: t.update(more=torch.ones(1)), "E158.*more"),
        (
            "encoder.pkl",
            lambda t: t["backward_layer_1.state_projection.weight"].fill_(np.nan),
            "E159.*backward_layer_1",
        ),
        ("token_embedder.pkl", lambda t: t["convolutions.1.bias"].fill_(-np.inf), "E159.*convolutions"),
        (
            "token_embedder.pkl",
            lambda t: t.update({"projection.bias": torch.full((5,), 1e300, dtype=torch.float64)}),
            "E159",
        ),
    ],
)
def test_weights_that_do_not_fit(
    model: Path, name: str, change: Callable[[dict[str, torch.Tensor]], Any], code: str
) -> None:
    edit_tensors(model / name, change)
    with pytest.raises(WeightsError, match=code):
        load_many_langs(model)


FILES = ["config.json", NAME, "word.dic", "char.dic", "token_embedder.pkl", "encoder.pkl"]


def damaged(data: bytes, chance: random.Random) -> bytes:
    if chance.random() < 0.3:
        return data[: chance.randrange(len(data))]
    changed = bytearray(data)
    for _ in range(chance.choice([1, 1, 4])):
        changed[chance.randrange(len(data))] = chance.randrange(256)
    return bytes(changed)


@pytest.mark.parametrize("name", FILES)
def test_damaged_files_never_give_anything_but_a_weights_error(model: Path, name: str) -> None:
    """Bytes of a weight or a word may change unnoticed; nothing else may pass, nor any other error."""
    data = (model / name).read_bytes()
    refused = 0
    for seed in range(60):
        (model / name).write_bytes(damaged(data, random.Random(seed)))
        try:
            bilm = load_many_langs(model)
        except WeightsError as error:
            assert "ELMO-E15" in str(error)
            refused += 1
        else:
            assert all(parameter.isfinite().all() for parameter in bilm.parameters())
    assert refused > 10
