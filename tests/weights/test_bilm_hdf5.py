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

from spacy_elmo.errors import ConfigError, ElmoWarning, WeightsError
from spacy_elmo.lm.bilm import CANONICAL_SENTENCE
from spacy_elmo.lm.characters import BEGIN_SENTENCE, END_SENTENCE
from spacy_elmo.lm.config import BiLMConfig
from spacy_elmo.weights.bilm_hdf5 import load_bilm_hdf5
from tests.golden import ATOL, MODELS, oracle_inputs, read_golden, read_text_vectors, read_token_vectors
from tests.oracle import OracleBiLM
from tests.weights.hdf5_model import CONFIG, HDF5Model

h5py = pytest.importorskip("h5py")

CELL = "RNN_0/RNN/MultiRNNCell/Cell0/LSTMCell"


# Golden output.


@pytest.mark.parametrize("model", MODELS)
def test_carried_state_matches_all_sentences(fixtures_dir: Path, model: str) -> None:
    golden = read_golden(fixtures_dir, model)
    bilm = load_bilm_hdf5(golden.options, golden.weights, initial_state="carry")
    state = None
    compared = 0
    for batch, expected in zip(golden.batches, golden.top, strict=True):
        output = bilm(batch, state=state)
        state = output.state
        for layers, top in zip(output.split(), expected, strict=True):
            np.testing.assert_allclose(layers[:, -1].numpy(), top, rtol=0, atol=ATOL)
            compared += 1
    assert compared == 30


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


def test_settings_left_out_have_the_defaults_of_bilm_tf(tmp_path: Path) -> None:
    changes = {"n_layers": 1, "skip_connections": False, "cell_clip": None, "projection_clip": None, "n_highway": 0}
    config = BiLMConfig.from_dict({**CONFIG.to_dict(), **changes})
    files = HDF5Model(tmp_path, config)
    for name in ("n_layers", "use_skip_connections", "cell_clip", "proj_clip"):
        del files.settings["lstm"][name]
    for name in ("n_highway", "n_characters"):
        del files.settings["char_cnn"][name]
    files.write_options()
    files.assert_loads_as(config)


@pytest.mark.filterwarnings("error")
def test_settings_of_training_and_legacy_keys_change_nothing(files: HDF5Model) -> None:
    files.settings.update(bidirectional=True, dropout=0.1, all_clip_norm_val=10.0, n_epochs=10, batch_size=128)
    files.settings.update(n_train_tokens=768648884, n_tokens_vocab=793471, unroll_steps=20, learning_rate=0.2)
    files.settings.update(n_negative_samples_batch=8192, share_embedding_softmax=False, sample_softmax=True)
    files.settings["lstm"]["reverse"] = False
    files.settings["char_cnn"].update(projection_after_highway=True, n_characters=261)
    files.write_options()
    files.assert_loads_as(CONFIG)


def test_unknown_settings_are_named_and_change_nothing(files: HDF5Model) -> None:
    files.settings["char_cnn"]["projection"] = {"dim": 7}
    files.settings["clip_grad_norm"] = 5.0
    files.write_options()
    with pytest.warns(ElmoWarning, match=r"W120.*clip_grad_norm.*char_cnn\.projection") as caught:
        bilm = load_bilm_hdf5(files.options, files.weights)
    assert Path(caught[0].filename) == Path(__file__)
    assert bilm.config == CONFIG


def test_softmax_beside_the_bilm_is_not_read(files: HDF5Model) -> None:
    files.replace("softmax/W", np.full((11, 5), np.nan, "float32"))
    files.replace("softmax/b", np.zeros(11, "float32"))
    files.assert_loads_as(CONFIG)


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


def _refused(files: HDF5Model, code: str, *parts: str) -> None:
    with pytest.raises(WeightsError) as caught:
        files.load()
    message = str(caught.value)
    assert message.startswith(f"[ELMO-{code}]"), message
    for part in parts:
        assert part in message


@pytest.mark.parametrize("name", ["options", "weights"])
def test_missing_file(files: HDF5Model, name: str) -> None:
    path = getattr(files, name)
    path.unlink()
    _refused(files, "E120", str(path), "No such file")


def test_folder_instead_of_a_file(files: HDF5Model) -> None:
    files.weights = files.weights.parent
    _refused(files, "E120", str(files.weights))


@pytest.mark.parametrize("content", [b"{", b"", b"\xff\xfe{}", b"[" * 100_000], ids=["cut", "empty", "bytes", "deep"])
def test_invalid_json(files: HDF5Model, content: bytes) -> None:
    files.options.write_bytes(content)
    _refused(files, "E121", str(files.options))


def test_json_with_a_byte_order_mark(files: HDF5Model) -> None:
    files.options.write_bytes(b"\xef\xbb\xbf" + files.options.read_bytes())
    files.assert_loads_as(CONFIG)


@pytest.mark.parametrize(
    ("section", "name", "value", "code", "part"),
    [
        (None, "lstm", None, "E122", "'lstm'"),
        (None, "char_cnn", [1], "E122", "'char_cnn'"),
        ("char_cnn", "embedding", 16, "E122", "'char_cnn.embedding'"),
        (None, "bidirectional", False, "E124", "False"),
        ("lstm", "dim", "64", "E125", "lstm.dim"),
        ("lstm", "dim", None, "E125", "'cells'"),
        ("lstm", "projection_dim", None, "E125", "'projection'"),
        ("lstm", "n_layers", 0, "E125", "'n_layers'"),
        ("lstm", "use_skip_connections", "yes", "E125", "'skip_connections'"),
        ("lstm", "cell_clip", 0, "E125", "'cell_clip'"),
        ("lstm", "proj_clip", float("nan"), "E125", "'projection_clip'"),
        ("char_cnn", "filters", None, "E125", "'filters'"),
        ("char_cnn", "filters", [[9, 1]], "E125", "'filters'"),
        ("char_cnn", "filters", [4], "E125", "'filters'"),
        ("char_cnn", "activation", "gelu", "E125", "gelu"),
        ("char_cnn", "activation", None, "E125", "'activation'"),
        ("char_cnn", "max_characters_per_token", None, "E125", "'max_characters'"),
        ("char_cnn", "embedding", {}, "E125", "'character_dim'"),
    ],
)
def test_options_that_describe_no_bilm(
    files: HDF5Model, section: str | None, name: str, value: object, code: str, part: str
) -> None:
    (files.settings[section] if section else files.settings)[name] = value
    files.write_options()
    _refused(files, code, str(files.options), part)


def test_options_that_are_no_object(files: HDF5Model) -> None:
    files.options.write_text("[]", encoding="utf8")
    _refused(files, "E122", "top level")


def test_word_model(files: HDF5Model) -> None:
    del files.settings["char_cnn"]
    files.write_options()
    _refused(files, "E123", "whole words")


def test_unknown_initial_state(files: HDF5Model) -> None:
    with pytest.raises(ConfigError, match=r"E001.*warm"):
        load_bilm_hdf5(files.options, files.weights, initial_state="warm")  # type: ignore[arg-type]


def test_h5py_that_is_not_installed(files: HDF5Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "h5py", None)
    _refused(files, "E126", "spacy-elmo[hdf5]")


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
    _refused(files, "E127", str(files.weights))


def test_damaged_chunk(files: HDF5Model) -> None:
    values = files.parameters["encoder.characters"] + 1
    files.replace("char_embed", values, chunks=values.shape, fletcher32=True)
    content = files.weights.read_bytes()
    where = content.find(values.tobytes())
    assert where > 0
    files.weights.write_bytes(content[:where] + b"\x01" + content[where + 1 :])
    _refused(files, "E127", str(files.weights))


@pytest.mark.parametrize(
    "name", ["char_embed", "CNN/b_cnn_1", "CNN_high_1/W_carry", "CNN_proj/W_proj", f"{CELL}/W_P_0"]
)
def test_missing_dataset(files: HDF5Model, name: str) -> None:
    files.replace(name, None)
    _refused(files, "E128", str(files.weights), f"'{name}'")


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
    _refused(files, "E129", f"'{name}'", str(found), str(expected))


def test_absurd_size_is_refused_before_memory_is_taken(files: HDF5Model) -> None:
    files.settings["lstm"].update(dim=10**12, n_layers=10**12)
    files.write_options()
    _refused(files, "E129", f"{CELL}/W_0")


@pytest.mark.parametrize(
    ("values", "part"), [(np.zeros((261, 3), "int32"), "int32"), (np.zeros((261, 3), "complex64"), "complex64")]
)
def test_dataset_that_is_no_floats(files: HDF5Model, values: np.ndarray, part: str) -> None:
    files.replace("char_embed", values)
    _refused(files, "E130", "'char_embed'", part)


def test_group_instead_of_a_dataset(files: HDF5Model) -> None:
    files.replace("char_embed", None)
    with h5py.File(files.weights, "a") as file:
        file.create_group("char_embed")
    _refused(files, "E130", "'char_embed'", "a group")


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
        _refused(files, "E130", str(files.weights), "a link")


def test_external_storage_is_not_read(files: HDF5Model) -> None:
    raw = files.weights.with_name("raw")
    raw.write_bytes(files.parameters["encoder.characters"].tobytes())
    files.replace("char_embed", None)
    with h5py.File(files.weights, "a") as file:
        file.create_dataset("char_embed", (261, 3), "float32", external=[(str(raw), 0, h5py.h5f.UNLIMITED)])
    _refused(files, "E130", "'char_embed'", "other files")


def test_virtual_dataset_is_not_read(files: HDF5Model) -> None:
    layout = h5py.VirtualLayout(shape=(261, 3), dtype="float32")
    layout[:] = h5py.VirtualSource("elsewhere.hdf5", "char_embed", shape=(261, 3))
    files.replace("char_embed", None)
    with h5py.File(files.weights, "a") as file:
        file.create_virtual_dataset("char_embed", layout)
    _refused(files, "E130", "'char_embed'", "other files")


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
    _refused(files, "E131", extra)


@pytest.mark.parametrize("name", ["char_embed", "CNN/W_cnn_0", f"{CELL}/W_0", f"{CELL}/B", f"{CELL}/W_P_0"])
@pytest.mark.parametrize("value", [np.nan, np.inf, 1e300])
def test_values_that_are_not_finite(files: HDF5Model, name: str, value: float) -> None:
    with h5py.File(files.weights, "r") as file:
        values = file[name][...].astype("float64")
    values.flat[-1] = value
    files.replace(name, values)
    _refused(files, "E132", f"'{name}'")
