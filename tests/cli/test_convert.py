"""`python -m spacy elmo convert` and `info`, of models that others left behind."""

from __future__ import annotations

import json
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pytest

from spacy_elmo.cli.convert import convert
from spacy_elmo.cli.info import describe
from spacy_elmo.weights.fingerprint import fingerprint
from spacy_elmo.weights.formats import load_model
from tests.cli.conftest import Command
from tests.weights.hdf5_model import CONFIG, HDF5Model, bilm_tf_datasets, read_datasets
from tests.weights.tf_writer import bilm_tf_variables, write_bundle

WORDS = ["<S>", "</S>", "<UNK>", "the"]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPACY_ELMO_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def files(tmp_path: Path) -> HDF5Model:
    files = HDF5Model(tmp_path / "pair")
    files.replace("softmax/W", np.ones((len(WORDS), CONFIG.projection), dtype="float32"))
    files.replace("softmax/b", np.zeros(len(WORDS), dtype="float32"))
    (tmp_path / "pair" / "vocab.txt").write_text("".join(f"{word}\n" for word in WORDS), encoding="utf-8")
    return files


@pytest.fixture
def checkpoint(files: HDF5Model, tmp_path: Path) -> Path:
    write_bundle(tmp_path / "run" / "model.ckpt-3", bilm_tf_variables(bilm_tf_datasets(CONFIG, files.parameters)))
    (tmp_path / "run" / "options.json").write_bytes(files.options.read_bytes())
    return tmp_path / "run"


def test_hdf5_to_native_and_back(files: HDF5Model, tmp_path: Path, spacy_command: Command) -> None:
    native, again = tmp_path / "native", tmp_path / "deep" / "again"
    result = spacy_command("elmo", "convert", f"{files.options}::{files.weights}", native)
    assert result.exit_code == 0, result.output
    assert "a softmax of 4 words" in result.output and "'canonical' was assumed" in result.output
    result = spacy_command("elmo", "convert", native, again, "--format", "bilm-hdf5")
    assert result.exit_code == 0, result.output
    before, after = read_datasets(files.weights), read_datasets(again / "weights.hdf5")
    assert before.keys() == after.keys()
    assert all(before[name].tobytes() == after[name].tobytes() for name in before)
    assert not [path for path in tmp_path.rglob("*.part")]


def test_checkpoint_to_both(checkpoint: Path, tmp_path: Path, spacy_command: Command) -> None:
    for format in ("native", "bilm-hdf5"):
        result = spacy_command("elmo", "convert", checkpoint, tmp_path / format, "--format", format)
        assert result.exit_code == 0, result.output
    names = {fingerprint(load_model(place).bilm) for place in (checkpoint, tmp_path / "native", tmp_path / "bilm-hdf5")}
    assert len(names) == 1


def test_what_is_warned_of_is_said_once(files: HDF5Model, tmp_path: Path, spacy_command: Command) -> None:
    files.settings["strange"] = 1
    files.write_options()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = spacy_command("elmo", "convert", files.options, tmp_path / "m")
    assert result.exit_code == 0, result.output
    assert result.output.count("strange") == 1


def test_softmax_is_left_out_where_asked(files: HDF5Model, tmp_path: Path, spacy_command: Command) -> None:
    result = spacy_command("elmo", "convert", files.options, tmp_path / "m", "--no-softmax")
    assert result.exit_code == 0 and "a softmax of" not in result.output
    assert {path.name for path in (tmp_path / "m").iterdir()} == {"config.json", "model.safetensors", "README.md"}


def test_output_that_is_in_use(files: HDF5Model, tmp_path: Path, spacy_command: Command) -> None:
    (tmp_path / "m").mkdir()
    assert spacy_command("elmo", "convert", files.options, tmp_path / "m").exit_code == 0
    before = (tmp_path / "m" / "model.safetensors").stat().st_mtime_ns
    for output in (tmp_path / "m", files.options):
        result = spacy_command("elmo", "convert", files.options, output)
        assert result.exit_code == 1 and "[ELMO-E430]" in result.output
    assert (tmp_path / "m" / "model.safetensors").stat().st_mtime_ns == before


def test_failure_leaves_nothing(files: HDF5Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("spacy_elmo.weights.formats.save_bilm", full)
    with pytest.raises(KeyboardInterrupt):
        convert(files.options, tmp_path / "m")
    assert {path.name for path in tmp_path.iterdir()} == {"pair"}


@pytest.mark.parametrize("arguments", [("nothing",), ("https://127.0.0.1:1/x.zip", "--offline")])
def test_bad_source_is_one_message(tmp_path: Path, spacy_command: Command, arguments: tuple[str, ...]) -> None:
    source, *options = arguments
    for command in (("convert", source, tmp_path / "m"), ("info", source), ("assemble", source, tmp_path / "m")):
        result = spacy_command("elmo", *command, *options)
        assert result.exit_code == 1 and "[ELMO-E1" in result.output and "Traceback" not in result.output
    assert not (tmp_path / "m").exists()


def test_info_of_a_zip_file(files: HDF5Model, tmp_path: Path, spacy_command: Command) -> None:
    files.settings["n_epochs"] = 10
    files.settings["strange"] = 1
    files.write_options()
    with zipfile.ZipFile(tmp_path / "m.zip", "w") as archive:
        for path in files.weights.parent.iterdir():
            archive.write(path, path.name)
        archive.writestr("meta.json", json.dumps({"algorithm": {"name": "ELMo"}, "corpus": {"language": "en"}}))
    result = spacy_command("elmo", "info", tmp_path / "m.zip", "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    weights = found["Weights"]
    assert (weights["format"], weights["language"], weights["vocabulary"]) == ("bilm-hdf5", "en", 4)
    assert weights["parameters"] == sum(values.size for values in files.parameters.values())
    assert set(weights["files"]) == {"options.json", "weights.hdf5", "vocab.txt"}
    assert found["Architecture"]["initial_state"] == "canonical" and found["Architecture"]["layers"] == 3
    notes = " ".join(found["Assumed and ignored"])
    assert "canonical" in notes and "n_epochs" in notes and "strange" in notes


def test_info_of_a_checkpoint_as_a_table(checkpoint: Path, spacy_command: Command) -> None:
    result = spacy_command("elmo", "info", checkpoint)
    assert result.exit_code == 0, result.output
    for part in ("tf-checkpoint", "model.ckpt-3.index", "Assumed and ignored", "canonical"):
        assert part in result.output


def test_info_of_the_embedded_model_assumes_nothing() -> None:
    found = describe()
    assert "Assumed and ignored" not in found
    assert found["Weights"]["format"] == "native" and len(found["Weights"]["fingerprint"]) == 64
    assert "card" not in found["Weights"]


def test_same_weights_have_one_fingerprint(files: HDF5Model, tmp_path: Path) -> None:
    convert(files.options, tmp_path / "m")
    one, other = describe(files.options), describe(tmp_path / "m")
    assert one["Weights"]["fingerprint"] == other["Weights"]["fingerprint"]
