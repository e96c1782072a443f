"""Models from any container are the same model, and what is written is read back bit for bit."""

from __future__ import annotations

import json
import socket
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from spacy_elmo.errors import ConfigError, WeightsError
from spacy_elmo.lm.bilm import BiLM
from spacy_elmo.lm.softmax import AdaptiveSoftmax, FullSoftmax
from spacy_elmo.weights import formats
from spacy_elmo.weights.formats import LoadedModel, load_model, model_card, save_model
from spacy_elmo.weights.native import save_bilm, save_head
from tests.golden import read_golden
from tests.weights.hdf5_model import CONFIG, HDF5Model, bilm_tf_datasets, read_datasets
from tests.weights.many_langs_model import ManyLangsReading, write_model
from tests.weights.tf_writer import bilm_tf_variables, write_bundle

WORDS = ["<S>", "</S>", "<UNK>", "the", "of", "Fluß", "a\u3000b"]


@pytest.fixture(autouse=True)
def closed_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache of its own, and no network at all."""

    def refuse(*arguments: object, **options: object) -> None:
        raise AssertionError("the network was touched")

    monkeypatch.setattr(socket, "socket", refuse)
    monkeypatch.setenv("SPACY_ELMO_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def files(tmp_path: Path) -> HDF5Model:
    """options.json and weights.hdf5 of random weights, with a softmax and its vocabulary."""
    files = HDF5Model(tmp_path / "pair")
    values = np.random.default_rng(0)
    files.replace("softmax/W", values.normal(size=(len(WORDS), CONFIG.projection)).astype("float32"))
    files.replace("softmax/b", values.normal(size=len(WORDS)).astype("float32"))
    (tmp_path / "pair" / "vocab.txt").write_text("".join(f"{word}\n" for word in WORDS), encoding="utf-8")
    return files


@pytest.fixture
def checkpoint(files: HDF5Model, tmp_path: Path) -> Path:
    """The directory that bilm-tf trained these weights in."""
    tensors = {**bilm_tf_datasets(CONFIG, files.parameters)}
    tensors |= {name: values for name, values in read_datasets(files.weights).items() if name.startswith("softmax")}
    write_bundle(tmp_path / "run" / "model.ckpt-10", bilm_tf_variables(tensors))
    for name in ("options.json", "vocab.txt"):
        (tmp_path / "run" / name).write_bytes((tmp_path / "pair" / name).read_bytes())
    return tmp_path / "run"


def zipped(path: Path, directory: Path) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for file in directory.iterdir():
            archive.write(file, file.name)
    return path


def assert_same(one: torch.nn.Module, other: torch.nn.Module) -> None:
    assert one.state_dict().keys() == other.state_dict().keys()
    for name, values in one.state_dict().items():
        assert torch.equal(values, other.state_dict()[name]), name


def assert_same_model(one: LoadedModel, other: LoadedModel) -> None:
    assert one.bilm.config == other.bilm.config
    assert_same(one.bilm, other.bilm)
    assert (one.head is None, one.vocabulary) == (other.head is None, other.vocabulary)
    if one.head is not None and other.head is not None:
        assert one.head.settings == other.head.settings
        assert_same(one.head, other.head)


# In


@pytest.mark.parametrize(
    "container", ["directory", "options", "weights", "string", "list", "zip", "native", "checkpoint"]
)
def test_same_model_from_every_container(files: HDF5Model, checkpoint: Path, tmp_path: Path, container: str) -> None:
    save_model(load_model(files.weights, with_softmax=True), tmp_path / "native")
    source: Any = {
        "directory": files.weights.parent,
        "options": files.options,
        "weights": str(files.weights),
        "string": f"{files.options}::{files.weights}",
        "list": [files.options, files.weights],
        "zip": zipped(tmp_path / "m.zip", files.weights.parent),
        "native": tmp_path / "native",
        "checkpoint": checkpoint,
    }[container]
    model = load_model(source, with_softmax=True)
    assert model.head is not None and model.vocabulary == WORDS
    assert_same_model(model, load_model(files.weights.parent, with_softmax=True))
    expected = {"native": "native", "checkpoint": "tf-checkpoint"}.get(container, "bilm-hdf5")
    assert model.facts["format"] == expected


@pytest.mark.parametrize("name", ["bilm-tf", "allennlp"])
@pytest.mark.parametrize("container", ["zip", "native", "hdf5"])
def test_golden_output_through_containers(fixtures_dir: Path, tmp_path: Path, name: str, container: str) -> None:
    golden = read_golden(fixtures_dir, name)
    (tmp_path / "m").mkdir()
    for source, target in ((golden.options, "options.json"), (golden.weights, "model.hdf5")):
        (tmp_path / "m" / target).write_bytes(source.read_bytes())
    place = zipped(tmp_path / "m.zip", tmp_path / "m")
    if container != "zip":
        format = {"native": "native", "hdf5": "bilm-hdf5"}[container]
        save_model(load_model(place, initial_state="carry"), tmp_path / "out", format)
        place = tmp_path / "out"
    bilm = load_model(place, initial_state="carry").bilm
    state = None
    with torch.inference_mode():
        for batch, expected in zip(golden.batches[:3], golden.top):
            output = bilm(batch, state=state)
            state = output.state
            np.testing.assert_allclose(output.layers[:, -1].numpy(), np.concatenate(expected), atol=2e-6)


@pytest.mark.parametrize("source", ["pair", "run", "native"])
def test_without_asking_there_is_no_softmax(files: HDF5Model, checkpoint: Path, tmp_path: Path, source: str) -> None:
    save_model(load_model(files.weights, with_softmax=True), tmp_path / "native")
    model = load_model(tmp_path / source)
    assert (model.head, model.vocabulary) == (None, None)


def test_checkpoint_gives_the_softmax_that_the_export_lacks(files: HDF5Model, checkpoint: Path) -> None:
    """bilm-tf's dump leaves it out. The weights are those of the checkpoint, too: they could be newer."""
    exported = HDF5Model(checkpoint)
    exported.replace("char_embed", exported.parameters["encoder.characters"] * 2)
    model = load_model(checkpoint, with_softmax=True)
    assert_same_model(model, load_model(files.weights, with_softmax=True))
    assert any("checkpoint model.ckpt-10" in note for note in model.notes)
    assert not torch.equal(load_model(checkpoint).bilm.encoder.characters, model.bilm.encoder.characters)


def test_softmax_in_a_file_of_its_own(files: HDF5Model, tmp_path: Path) -> None:
    """As AI2 published it."""
    import h5py

    expected = load_model(files.weights, with_softmax=True)
    with (
        h5py.File(files.weights.with_name("elmo_softmax_weights.hdf5"), "w") as other,
        h5py.File(files.weights, "a") as file,
    ):
        file.copy("softmax", other)
        del file["softmax"]
    assert_same_model(load_model(files.weights.parent, with_softmax=True), expected)


def test_initial_state_that_is_not_told_is_assumed(files: HDF5Model) -> None:
    model = load_model(files.weights)
    assert model.bilm.config.initial_state == "canonical"
    assert any("'canonical' was assumed" in note for note in model.notes)
    model = load_model(files.weights, initial_state="zero")
    assert model.bilm.config.initial_state == "zero"
    assert not any("assumed" in note for note in model.notes)


def test_initial_state_of_a_native_model_is_its_own(tmp_path: Path) -> None:
    save_bilm(BiLM(CONFIG.from_dict({**CONFIG.to_dict(), "initial_state": "carry"})), tmp_path)
    assert load_model(tmp_path).bilm.config.initial_state == "carry"
    assert load_model(tmp_path, initial_state="zero").bilm.config.initial_state == "zero"


def test_unknown_initial_state(files: HDF5Model) -> None:
    with pytest.raises(ConfigError, match="E001.*'random'"):
        load_model(files.weights, initial_state="random")  # type: ignore[arg-type]


def test_what_was_ignored_is_noted(files: HDF5Model) -> None:
    files.settings["n_train_tokens"] = 5
    del files.settings["lstm"]["cell_clip"]
    files.write_options()
    notes = " ".join(load_model(files.weights).notes)
    assert "n_train_tokens" in notes and "cell_clip" in notes


def test_model_without_softmax_says_so(tmp_path: Path) -> None:
    model = load_model(HDF5Model(tmp_path / "m").weights, with_softmax=True)
    assert model.head is None and any("no softmax" in note for note in model.notes)


@pytest.mark.parametrize("source", ["pair", "native"])
def test_vocabulary_of_another_size(files: HDF5Model, tmp_path: Path, source: str) -> None:
    model = load_model(files.weights, with_softmax=True)
    model.vocabulary = WORDS[:-1]
    save_model(model, tmp_path / "native")
    (tmp_path / "pair" / "vocab.txt").write_text("one\ntwo\n", encoding="utf-8")
    with pytest.raises(WeightsError, match="E178.*7"):
        load_model(tmp_path / source, with_softmax=True)
    load_model(tmp_path / source)


def test_many_langs_go_to_their_reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from spacy_elmo.weights import many_langs

    asked = []

    def load(directory: Path, initial_state: str, notes: list[str]) -> BiLM:
        asked.append((directory, initial_state))
        notes.append("what was assumed")
        return BiLM(CONFIG)

    monkeypatch.setattr(many_langs, "load_many_langs", load)
    for name in ("encoder.pkl", "token_embedder.pkl"):
        (tmp_path / name).touch()
    model = load_model(tmp_path)
    assert model.facts["format"] == "many-langs" and "what was assumed" in model.notes
    load_model(tmp_path, initial_state="zero", with_softmax=True)
    assert asked == [(tmp_path, "canonical"), (tmp_path, "zero")]
    assert not any("classifier" in note for note in load_model(tmp_path, with_softmax=True).notes)
    (tmp_path / "classifier.pkl").touch()
    assert any("classifier" in note for note in load_model(tmp_path, with_softmax=True).notes)


def test_many_langs_from_a_zip_file_to_native(tmp_path: Path) -> None:
    directory = write_model(tmp_path / "m")
    model = load_model(zipped(tmp_path / "m.zip", directory))
    assert model.facts["format"] == "many-langs"
    save_model(model, tmp_path / "native")
    assert_same_model(load_model(tmp_path / "native"), model)
    reading = ManyLangsReading(directory)
    with torch.inference_mode():
        layers = load_model(tmp_path / "native", initial_state="zero").bilm([["the", "日本", "new"]]).layers
    np.testing.assert_allclose(layers.numpy(), reading.embed(["the", "日本", "new"]), atol=1e-5)
    with pytest.raises(WeightsError, match="E135"):
        save_model(model, tmp_path / "hdf5", "bilm-hdf5")


def test_source_that_is_none() -> None:
    with pytest.raises(WeightsError, match="E170"):
        load_model("nothing here")


# Out


def test_hdf5_through_native_and_back_is_bit_exact(files: HDF5Model, tmp_path: Path) -> None:
    save_model(load_model(files.weights, with_softmax=True), tmp_path / "native")
    save_model(load_model(tmp_path / "native", with_softmax=True), tmp_path / "again", "bilm-hdf5")
    before, after = read_datasets(files.weights), read_datasets(tmp_path / "again" / "weights.hdf5")
    assert before.keys() == after.keys()
    assert all(before[name].tobytes() == after[name].tobytes() for name in before)
    assert json.loads((tmp_path / "again" / "options.json").read_text()) == files.settings
    assert_same_model(load_model(tmp_path / "again", with_softmax=True), load_model(files.weights, with_softmax=True))


@pytest.mark.parametrize("head", [FullSoftmax(CONFIG.projection, 7), AdaptiveSoftmax(CONFIG.projection, 7, [2, 4])])
def test_native_keeps_any_softmax(tmp_path: Path, head: FullSoftmax | AdaptiveSoftmax) -> None:
    model = LoadedModel(BiLM(CONFIG), head, list(WORDS))
    save_model(model, tmp_path / "m")
    assert_same_model(load_model(tmp_path / "m", with_softmax=True), model)


def test_hdf5_has_no_place_for_an_adaptive_softmax(tmp_path: Path) -> None:
    model = LoadedModel(BiLM(CONFIG), AdaptiveSoftmax(CONFIG.projection, 7, [2, 4]))
    with pytest.raises(WeightsError, match="E134"):
        save_model(model, tmp_path / "m", "bilm-hdf5")


def test_parts_of_a_model_that_was_there_before_do_not_stay(tmp_path: Path) -> None:
    save_model(LoadedModel(BiLM(CONFIG), FullSoftmax(CONFIG.projection, 7), list(WORDS)), tmp_path)
    save_model(LoadedModel(BiLM(CONFIG)), tmp_path)
    model = load_model(tmp_path, with_softmax=True)
    assert (model.head, model.vocabulary) == (None, None)


def test_same_model_gives_the_same_files(files: HDF5Model, tmp_path: Path) -> None:
    for name in "ab":
        save_model(load_model(files.weights, with_softmax=True), tmp_path / name)
    written = [{path.name: path.read_bytes() for path in (tmp_path / name).iterdir()} for name in "ab"]
    assert written[0] == written[1]
    assert set(written[0]) == {
        "config.json",
        "model.safetensors",
        "softmax.safetensors",
        "vocabulary.txt.gz",
        "README.md",
    }


@pytest.mark.parametrize("format", ["hdf5", "tf-checkpoint", ""])
def test_other_formats_are_not_written(tmp_path: Path, format: str) -> None:
    with pytest.raises(WeightsError, match="E180.*native, bilm-hdf5"):
        save_model(LoadedModel(BiLM(CONFIG)), tmp_path / "m", format)
    assert not (tmp_path / "m").exists()


@pytest.mark.parametrize("format", ["native", "bilm-hdf5"])
def test_place_that_cannot_be_written(tmp_path: Path, format: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(WeightsError, match="E179"):
        save_model(LoadedModel(BiLM(CONFIG)), tmp_path / "file", format)


# The model card


def test_card_tells_the_origin(files: HDF5Model, tmp_path: Path) -> None:
    model = load_model(files.weights)
    card = model_card(model)
    assert card.startswith("# weights.hdf5\n") and "bilm-hdf5" in card and "Not known" in card
    assert "- cells: 6" in card and "canonical" in card and str(tmp_path) not in card


def test_card_tells_what_is_known_of_a_public_model() -> None:
    facts = {
        "name": "ai2-x",
        "source": "ai2-x",
        "about": "AI2",
        "language": "en",
        "licence": "CC0",
        "urls": ["https://h/w.hdf5"],
        "sha256": {"w.hdf5": "ab"},
    }
    card = model_card(LoadedModel(BiLM(CONFIG), facts=facts, notes=["Something was ignored."]))
    for part in ("# ai2-x", "made by: AI2", "language: en", "CC0", "https://h/w.hdf5", "w.hdf5: `ab`", "was ignored"):
        assert part in card


def test_card_of_a_native_model_is_kept(tmp_path: Path) -> None:
    save_bilm(BiLM(CONFIG), tmp_path / "a", model_card="# Mine\n\nLicence: CC0\n")
    save_model(load_model(tmp_path / "a"), tmp_path / "b")
    assert (tmp_path / "b" / "README.md").read_text(encoding="utf-8") == "# Mine\n\nLicence: CC0\n"


def test_readers_know_every_format() -> None:
    assert set(formats._READERS) == {"native", "bilm-hdf5", "tf-checkpoint", "many-langs"}


def test_native_softmax_without_a_vocabulary(tmp_path: Path) -> None:
    save_bilm(BiLM(CONFIG), tmp_path)
    save_head(FullSoftmax(CONFIG.projection, 7), tmp_path)
    model = load_model(tmp_path, with_softmax=True)
    assert model.head is not None and model.vocabulary is None
