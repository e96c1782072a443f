"""The reader of options.json + weights.hdf5: golden output, every variant in the wild, and what it refuses."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from spacy_elmo.errors import ConfigError, ElmoWarning
from spacy_elmo.lm.bilm import CANONICAL_SENTENCE
from spacy_elmo.lm.characters import BEGIN_SENTENCE, END_SENTENCE
from spacy_elmo.lm.config import BiLMConfig
from spacy_elmo.weights.bilm_hdf5 import load_bilm_hdf5
from tests.golden import ATOL, MODELS, oracle_inputs, read_golden, read_text_vectors, read_token_vectors
from tests.oracle import OracleBiLM
from tests.weights.hdf5_model import CONFIG, HDF5Model, assert_carried_layers_are_golden

h5py = pytest.importorskip("h5py")

CELL = "RNN_0/RNN/MultiRNNCell/Cell0/LSTMCell"


# Golden output.


@pytest.mark.parametrize("model", MODELS)
def test_carried_state_matches_all_sentences(fixtures_dir: Path, model: str) -> None:
    golden = read_golden(fixtures_dir, model)
    bilm = load_bilm_hdf5(golden.options, golden.weights, initial_state="carry")
    assert_carried_layers_are_golden(bilm, golden)


@pytest.mark.parametrize("model", MODELS)
def test_zero_state_matches_the_first_batch(fixtures_dir: Path, model: str) -> None:
    golden = read_golden(fixtures_dir, model)
    bilm = load_bilm_hdf5(golden.options, golden.weights, initial_state="zero")
    for layers, top in zip(bilm(golden.batches[0]).split(), golden.top[0], strict=True):
        np.testing.assert_allclose(layers[:, -1].numpy(), top, rtol=0, atol=ATOL)


@pytest.mark.parametrize("model", MODELS)
def test_canonical_state_is_the_default_and_closer_to_the_carried_one(fixtures_dir: Path, model: str) -> None:
    golden = read_golden(fixtures_dir, model)
    sentences = [sentence for batch in golden.batches[1:] for sentence in batch]
    carried = np.concatenate([top for batch in golden.top[1:] for top in batch])
    distance = {}
    for state in ("canonical", "zero"):
        layers = load_bilm_hdf5(golden.options, golden.weights, initial_state=state)(sentences).layers
        distance[state] = np.abs(layers[:, -1].numpy() - carried).mean()
    assert load_bilm_hdf5(golden.options, golden.weights).config.initial_state == "canonical"
    assert distance["canonical"] < distance["zero"] / 3


@pytest.mark.parametrize("model", MODELS)
def test_canonical_state_matches_the_oracle(fixtures_dir: Path, model: str) -> None:
    golden = read_golden(fixtures_dir, model)
    oracle = OracleBiLM(*oracle_inputs(golden.options, golden.weights, "canonical"), CANONICAL_SENTENCE)
    output = load_bilm_hdf5(golden.options, golden.weights)([golden.batches[3][0], [], golden.batches[3][1]])
    for layers, sentence in zip(output.split(), [golden.batches[3][0], [], golden.batches[3][1]], strict=True):
        np.testing.assert_allclose(layers.numpy(), oracle.embed(sentence)[0], rtol=0, atol=5e-6)


def test_word_vectors_of_allennlp(fixtures_dir: Path) -> None:
    golden = read_golden(fixtures_dir, "allennlp")
    words, expected = read_token_vectors(fixtures_dir)
    boundaries = {"<S>": BEGIN_SENTENCE, "</S>": END_SENTENCE}
    vectors = load_bilm_hdf5(golden.options, golden.weights).encode_words([boundaries.get(w, w) for w in words])
    assert len(words) == 458
    np.testing.assert_allclose(vectors.numpy(), expected, rtol=0, atol=ATOL)


def test_word_vectors_of_fast_elmo_whose_options_count_261_characters(fixtures_dir: Path) -> None:
    folder = fixtures_dir / "pytorch-fast-elmo"
    words, expected = read_text_vectors(fixtures_dir)
    boundaries = {"<S>": BEGIN_SENTENCE, "</S>": END_SENTENCE}
    bilm = load_bilm_hdf5(folder / "options.json", folder / "lm_weights.hdf5")
    vectors = bilm.encode_words([boundaries.get(w, w) for w in words])
    assert len(words) == 17
    np.testing.assert_allclose(vectors.numpy(), expected, rtol=0, atol=ATOL)


# Every variant in the wild.


@pytest.fixture
def files(tmp_path: Path) -> HDF5Model:
    return HDF5Model(tmp_path)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"activation": "tanh"},
        {"n_highway": 0},
        {"n_highway": 3},
        {"projection": 9},
        {"cells": 5},
        {"projection": 9, "cells": 9},
        {"n_layers": 1},
        {"n_layers": 4},
        {"skip_connections": False},
        {"cell_clip": None, "projection_clip": 2.5},
        {"cell_clip": 1, "projection_clip": None},
        {"filters": ((8, 1), (1, 2), (1, 3))},
        {"max_characters": 50},
    ],
    ids=str,
)
def test_variants_load_bit_for_bit(tmp_path: Path, changes: dict[str, Any]) -> None:
    config = BiLMConfig.from_dict({**CONFIG.to_dict(), **changes})
    HDF5Model(tmp_path, config).assert_loads_as(config)


def test_unknown_settings_are_named_and_change_nothing(files: HDF5Model) -> None:
    files.settings["char_cnn"]["projection"] = {"dim": 7}
    files.settings["clip_grad_norm"] = 5.0
    files.write_options()
    with pytest.warns(ElmoWarning, match=r"W120.*clip_grad_norm.*char_cnn\.projection") as caught:
        bilm = load_bilm_hdf5(files.options, files.weights)
    assert Path(caught[0].filename) == Path(__file__)
    assert bilm.config == CONFIG


def test_names_of_one_layer_as_bilm_tf_dumps_them(tmp_path: Path) -> None:
    config = BiLMConfig.from_dict({**CONFIG.to_dict(), "n_layers": 1})
    files = HDF5Model(tmp_path, config)
    with h5py.File(files.weights, "a") as file:
        for direction in ("RNN_0", "RNN_1"):
            file.move(f"{direction}/RNN/MultiRNNCell/Cell0/LSTMCell", f"{direction}/RNN/LSTMCell")
    files.assert_loads_as(config)


def test_dump_of_a_forward_only_model_is_named(files: HDF5Model) -> None:
    """Its options.json need not say that it is one: bilm-tf takes it for granted."""
    with h5py.File(files.weights, "a") as file:
        file.move("RNN_0/RNN/MultiRNNCell/Cell0/LSTMCell/W_0", "rnn/MultiRNNCell/Cell0/LSTMCell/kernel")
        del file["RNN_0"], file["RNN_1"]
    files.assert_refused("E124", str(files.weights))


def test_weights_read_in_inference_mode_can_be_trained(files: HDF5Model) -> None:
    with torch.inference_mode():
        bilm = files.load()
    bilm.requires_grad_(True)([["a", "b"]]).layers.sum().backward()
    assert bilm.forward_lm[0].bias.grad is not None


@pytest.mark.parametrize(
    ("dtype", "storage"),
    [("float64", {}), (">f4", {}), ("float32", {"chunks": (5, 7), "compression": "gzip", "shuffle": True})],
)
def test_storage_of_a_dataset_does_not_matter(files: HDF5Model, dtype: str, storage: dict[str, Any]) -> None:
    with h5py.File(files.weights, "r") as file:
        values = file[f"{CELL}/W_0"][...]
    files.replace(f"{CELL}/W_0", values.astype(dtype), **storage)
    files.assert_loads_as(CONFIG)


def test_half_precision_is_read_into_float32(files: HDF5Model) -> None:
    files.parameters["encoder.characters"] = files.parameters["encoder.characters"].astype("float16")
    files.replace("char_embed", files.parameters["encoder.characters"])
    files.assert_loads_as(CONFIG)


def test_weights_are_frozen_float32_in_evaluation(files: HDF5Model) -> None:
    bilm = files.load()
    assert not bilm.training
    assert all(p.dtype == torch.float32 and not p.requires_grad for p in bilm.parameters())


def test_random_numbers_are_left_alone(files: HDF5Model) -> None:
    before = torch.random.get_rng_state()
    files.load()
    assert torch.equal(before, torch.random.get_rng_state())


def test_paths_may_be_strings(files: HDF5Model) -> None:
    assert load_bilm_hdf5(str(files.options), str(files.weights)).config == CONFIG


# What is refused.


@pytest.mark.parametrize("name", ["options", "weights"])
def test_missing_file(files: HDF5Model, name: str) -> None:
    path = getattr(files, name)
    path.unlink()
    files.assert_refused("E120", str(path), "No such file")


def test_folder_instead_of_a_file(files: HDF5Model) -> None:
    files.weights = files.weights.parent
    files.assert_refused("E120", str(files.weights))


def test_unknown_initial_state(files: HDF5Model) -> None:
    with pytest.raises(ConfigError, match=r"E001.*warm"):
        load_bilm_hdf5(files.options, files.weights, initial_state="warm")  # type: ignore[arg-type]


def test_h5py_that_is_not_installed(files: HDF5Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "h5py", None)
    files.assert_refused("E126", "spacy-elmo[hdf5]")


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: b"",
        lambda content: b"PK\x03\x04 not hdf5",
        lambda content: content[: len(content) // 2],
        lambda content: content[:600] + b"\0" * (len(content) - 600),
    ],
    ids=["empty", "other", "cut", "zeros"],
)
def test_file_that_is_no_hdf5(files: HDF5Model, damage: Callable[[bytes], bytes]) -> None:
    files.weights.write_bytes(damage(files.weights.read_bytes()))
    files.assert_refused("E127", str(files.weights))


def test_damaged_chunk(files: HDF5Model) -> None:
    values = files.parameters["encoder.characters"] + 1
    files.replace("char_embed", values, chunks=values.shape, fletcher32=True)
    content = files.weights.read_bytes()
    where = content.find(values.tobytes())
    assert where > 0
    files.weights.write_bytes(content[:where] + b"\x01" + content[where + 1 :])
    files.assert_refused("E127", str(files.weights))


@pytest.mark.parametrize(
    "name", ["char_embed", "CNN/b_cnn_1", "CNN_high_1/W_carry", "CNN_proj/W_proj", f"{CELL}/W_P_0"]
)
def test_missing_dataset(files: HDF5Model, name: str) -> None:
    files.replace(name, None)
    files.assert_refused("E128", str(files.weights), f"'{name}'")


@pytest.mark.parametrize(
    ("name", "found", "expected"),
    [
        ("char_embed", (262, 3), (261, 3)),
        ("char_embed", (261, 4), (261, 3)),
        ("CNN/W_cnn_1", (2, 3, 2), (1, 2, 3, 2)),
        ("CNN/b_cnn_2", (4,), (3,)),
        ("CNN_high_0/W_transform", (9, 8), (9, 9)),
        ("CNN_high_1/b_carry", (1, 9), (9,)),
        ("CNN_proj/W_proj", (5, 9), (9, 5)),
        (f"{CELL}/W_0", (11, 24), (10, 24)),
        (f"{CELL}/B", (), (24,)),
        (f"{CELL}/W_P_0", (5, 6), (6, 5)),
    ],
)
def test_wrong_shape(files: HDF5Model, name: str, found: tuple[int, ...], expected: tuple[int, ...]) -> None:
    files.replace(name, np.zeros(found, "float32"))
    files.assert_refused("E129", f"'{name}'", str(found), str(expected))


def test_absurd_size_is_refused_before_memory_is_taken(files: HDF5Model) -> None:
    """Four tensors of 128 GiB, of which nothing is stored: the file has some kB."""
    width = 2**16
    files.settings["lstm"].update(dim=width, projection_dim=width)
    files.write_options()
    shapes = {"CNN_proj/W_proj": (9, width), "CNN_proj/b_proj": (width,)}
    for cell in (f"RNN_{d}/RNN/MultiRNNCell/Cell{layer}/LSTMCell" for d in range(2) for layer in range(2)):
        files.replace(f"{cell}/W_P_0", None)
        shapes.update({f"{cell}/W_0": (2 * width, 4 * width), f"{cell}/B": (4 * width,)})
    for name, shape in shapes.items():
        files.replace(name, None)
        with h5py.File(files.weights, "a") as file:
            file.create_dataset(name, shape, "float32", chunks=(1, 1024)[-len(shape) :])
    files.assert_refused("E133", str(files.weights), "bytes")


@pytest.mark.parametrize(
    ("values", "part"), [(np.zeros((261, 3), "int32"), "int32"), (np.zeros((261, 3), "complex64"), "complex64")]
)
def test_dataset_that_is_no_floats(files: HDF5Model, values: np.ndarray, part: str) -> None:
    files.replace("char_embed", values)
    files.assert_refused("E130", "'char_embed'", part)


def test_group_instead_of_a_dataset(files: HDF5Model) -> None:
    files.replace("char_embed", None)
    with h5py.File(files.weights, "a") as file:
        file.create_group("char_embed")
    files.assert_refused("E130", "'char_embed'", "a group")


@pytest.mark.parametrize("name", ["char_embed", "CNN"])
def test_links_are_not_followed(files: HDF5Model, name: str) -> None:
    """Neither at the end of a path nor on the way: a link may lead to any file that the user can read."""
    elsewhere = files.weights.with_name("elsewhere.hdf5")
    os.link(files.weights, elsewhere)
    for link in (h5py.ExternalLink("elsewhere.hdf5", f"/{name}"), h5py.SoftLink("/softmax")):
        elsewhere.write_bytes(files.weights.read_bytes())
        with h5py.File(files.weights, "a") as file:
            del file[name]
            file[name] = link
        files.assert_refused("E130", str(files.weights), "a link")


def test_external_storage_is_not_read(files: HDF5Model) -> None:
    raw = files.weights.with_name("raw")
    raw.write_bytes(files.parameters["encoder.characters"].tobytes())
    files.replace("char_embed", None)
    with h5py.File(files.weights, "a") as file:
        file.create_dataset("char_embed", (261, 3), "float32", external=[(str(raw), 0, h5py.h5f.UNLIMITED)])
    files.assert_refused("E130", "'char_embed'", "other files")


def test_virtual_dataset_is_not_read(files: HDF5Model) -> None:
    layout = h5py.VirtualLayout(shape=(261, 3), dtype="float32")
    layout[:] = h5py.VirtualSource("elsewhere.hdf5", "char_embed", shape=(261, 3))
    files.replace("char_embed", None)
    with h5py.File(files.weights, "a") as file:
        file.create_virtual_dataset("char_embed", layout)
    files.assert_refused("E130", "'char_embed'", "other files")


@pytest.mark.parametrize(
    ("section", "name", "value", "extra"),
    [
        ("lstm", "n_layers", 1, "RNN_1/RNN/MultiRNNCell/Cell1/LSTMCell/W_0"),
        ("char_cnn", "n_highway", 1, "CNN_high_1/W_carry"),
        ("char_cnn", "filters", [[1, 4], [2, 2]], "CNN/W_cnn_2"),
    ],
)
def test_options_that_describe_less_than_the_file_holds(
    files: HDF5Model, section: str, name: str, value: object, extra: str
) -> None:
    """A model of fewer layers or highways would load and compute, but not what was trained."""
    files.settings[section][name] = value
    files.write_options()
    if name == "filters":
        for k in range(2):
            for part in ("carry", "transform"):
                files.replace(f"CNN_high_{k}/W_{part}", np.zeros((6, 6), "float32"))
                files.replace(f"CNN_high_{k}/b_{part}", np.zeros(6, "float32"))
        files.replace("CNN_proj/W_proj", np.zeros((6, 5), "float32"))
    files.assert_refused("E131", extra)


@pytest.mark.parametrize("name", ["char_embed", "CNN/W_cnn_0", f"{CELL}/W_0", f"{CELL}/B", f"{CELL}/W_P_0"])
@pytest.mark.parametrize("value", [np.nan, np.inf, 1e300])
def test_values_that_are_not_finite(files: HDF5Model, name: str, value: float) -> None:
    with h5py.File(files.weights, "r") as file:
        values = file[name][...].astype("float64")
    values.flat[-1] = value
    files.replace(name, values)
    files.assert_refused("E132", f"'{name}'")
